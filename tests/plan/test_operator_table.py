"""docs/operators.md says what quantizing a tiny model of each operator yields."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.plan.fusion import MOVED_AS_FLOATS
from qtool.plan.ops.movers import MoverHandler
from qtool.runtime.optimized import optimized_ops
from tests.models import normal, quantize_and_check
from tests.plan.operator_table import document
from tests.plan.test_plan import between

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"


def test_the_document_is_what_happens():
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "python -m tests.plan.operator_table > docs/operators.md"


@pytest.mark.parametrize("op", [op for op in MoverHandler.op_types if op not in ("Identity", "Expand")])
def test_movers_of_the_table_move_what_it_says(op):
    """In QDQ form a mover that is not taken out leaves a pair more in the graph of onnxruntime."""
    model = between(op)
    shape = [d.dim_value or 4 for d in model.graph.input[0].type.tensor_type.shape.dim]
    checked = quantize_and_check(model, {"x": normal(*shape, seed=2)}, format="qdq", agreement_db=28)
    assert optimized_ops(checked.model)["QuantizeLinear"] == (2 if op in MOVED_AS_FLOATS else 1)

"""docs/operators.md says what quantizing a tiny model of each operator yields."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qtool.plan.fusion import MOVED_AS_FLOATS
from qtool.plan.ops.movers import MoverHandler
from qtool.runtime.optimized import optimized_ops
from tests.models import build, normal, quantize_and_check
from tests.plan.operator_table import document
from tests.plan.test_plan import between

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"


def test_the_document_is_what_happens():
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "python -m tests.plan.operator_table > docs/operators.md"


@pytest.mark.parametrize("op", [op for op in MoverHandler.op_types if op not in ("Identity", "Expand", "Split")])
def test_movers_of_the_table_move_what_it_says(op):
    """In QDQ form a mover that is not taken out leaves a pair more in the graph of onnxruntime."""
    model = between(op)
    shape = [d.dim_value or 4 for d in model.graph.input[0].type.tensor_type.shape.dim]
    checked = quantize_and_check(model, {"x": normal(*shape, seed=2)}, format="qdq", agreement_db=28)
    assert optimized_ops(checked.model)["QuantizeLinear"] == (2 if op in MOVED_AS_FLOATS else 1)


def test_a_split_all_of_whose_outputs_are_read_moves_codes():
    text = """m (float[N,4,6,6] x) => (float[N,4,6,6] y, float[N,4,6,6] z) {
        a = Conv<pads=[1,1,1,1]>(x, u) p, q = Split<axis=1>(a, k) y = Conv(p, v) z = Conv(q, v)
    }"""
    arrays = {"u": normal(4, 4, 3, 3), "k": np.array([2, 2]), "v": normal(4, 2, 1, 1)}
    checked = quantize_and_check(build(text, arrays), {"x": normal(4, 4, 6, 6)}, format="qdq")
    assert optimized_ops(checked.model)["QuantizeLinear"] == 1

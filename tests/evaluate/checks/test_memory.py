"""Peak memory of each model in a process of its own."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qtool.errors import ModelError
from qtool.evaluate.checks import memory
from tests.evaluate.checks.subjects import subject
from tests.models import build

TEXT = "g (float[N,2048] x) => (float[N,2048] y) { y = MatMul(x, w) }"
QDQ = "g (float[N,2048] x) => (float[N,2048] y) { wd = DequantizeLinear(w, s) y = Mul(x, wd) }"


def test_both_models_are_measured_and_the_larger_one_takes_more() -> None:
    large = build(TEXT, {"w": np.ones((2048, 2048), np.float32)})
    small = build(QDQ, {"w": np.ones((1, 2048), np.int8), "s": np.float32(1)})
    result = memory.check(subject(large, small, np.ones((3, 2048), np.float32)))
    assert result.state == "ok"
    weights = 4 * 2048 * 2048
    before, after = result.values["float_bytes"], result.values["quantized_bytes"]
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert weights <= before <= 5 * weights
    assert after <= before - weights
    assert (result.values["batch_size"], result.values["threads"], result.samples) == (3, 1, 3)
    assert result.summary.endswith(" MB quantized (batch of 3 samples).")


@pytest.mark.parametrize(
    ("kind", "array"), [("string", np.array(["a", "bc"], object)), ("bfloat16", np.ones(2, ml_dtypes.bfloat16))]
)
def test_what_archives_do_not_hold_reaches_the_process(kind: str, array: np.ndarray, tmp_path: Path) -> None:
    model = build(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = Identity(x) }}")
    assert memory.measured_peak(model, {"x": array}, 1, tmp_path) < 100e6


def test_a_model_that_does_not_run_there_is_an_error(tmp_path: Path) -> None:
    x = np.ones((1, 2), ml_dtypes.bfloat16)  # and a type that archives do not know gets there
    with pytest.raises(ModelError, match=r"The process that measures memory failed: .*is not accepted by onnxruntime"):
        memory.measured_peak(b"no model", {"x": x}, 1, tmp_path)

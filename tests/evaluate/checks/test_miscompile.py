"""Case 62: onnxruntime optimised against as written; one code is normal, more is flagged with the node.

The planted faults are real: onnxruntime 1.32 fuses these graphs and computes something else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qtool.errors import ModelError
from qtool.evaluate.checks import miscompile
from qtool.evaluate.checks.miscompile import Difference
from tests.evaluate.checks.subjects import f32, subject
from tests.models import build, uniform

QDQ = """
g (float[N,4] x) => (float[N,4] y) {{
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  {extra}
  wd = DequantizeLinear<axis={axis}>(w, sw, zw)
  [product] m = {op}
  {tail}
}}"""
CODES = "mq = QuantizeLinear(m, sm, zx)\n y = DequantizeLinear(mq, sm, zx)"
FLOAT = "y = Identity(m)"
WEIGHT = np.random.default_rng(0).integers(-127, 128, (4, 4)).astype(np.int8)
ARRAYS = {
    "w": WEIGHT,
    "sx": np.float32(2 / 255),
    "zx": np.uint8(128),
    "sw": f32(0.01, 0.02, 0.05, 0.2),
    "zw": np.zeros(4, np.int8),
    "sm": np.float32(0.2),
}
X = uniform(6, 4, low=-1, seed=1)


def graph(op: str, *, axis: int, tail: str = CODES, extra: str = "", **arrays: Any) -> onnx.ModelProto:
    used = {k: v for k, v in {**ARRAYS, **arrays}.items() if k != "sm" or tail is CODES}
    return build(QDQ.format(op=op, axis=axis, tail=tail, extra=extra), used)


@pytest.mark.parametrize(("op", "axis"), [("Gemm(xd, wd)", 0), ("Gemm<transB=1>(xd, wd)", 1)])
@pytest.mark.parametrize("tail", [CODES, FLOAT], ids=["codes", "float"])
def test_scales_along_the_input_channels_are_found(op: str, axis: int, tail: str) -> None:
    model = graph(op, axis=axis, tail=tail)
    result = miscompile.check(subject(model, model, X))
    assert result.state == "flagged"
    assert result.samples == 2
    assert result.values["largest"] > 20
    first = result.findings[0]
    assert first.subject == "product"
    assert first.suggestion == "--exclude 'product'"
    tensor = "mq" if tail is CODES else "y"
    assert first.values["tensor"] == tensor
    assert first.text.startswith(f"the first to part: '{tensor}' differs by up to ")
    assert "which part at 'product' (2 samples)." in result.summary


def test_a_bias_scale_that_is_ignored_is_found() -> None:
    arrays = {"b": np.array([1000, -2000, 3000, 4000], np.int32), "sb": np.float32(0.001), "zb": np.int32(0)}
    arrays |= {"sw": np.float32(0.02), "zw": np.int8(0)}
    extra = "bd = DequantizeLinear(b, sb, zb)"
    model = graph("Gemm(xd, wd, bd)", axis=1, extra=extra, **arrays)
    result = miscompile.check(subject(model, model, X))
    assert (result.state, result.findings[0].subject) == ("flagged", "product")
    # bias 4000 * 0.001 = 4.0, taken for 4000 * sx * sw = 0.627: 3.37 / 0.2 is 16.9 codes
    assert result.values["largest"] == pytest.approx(17, abs=1e-3)


@pytest.mark.parametrize(("op", "axis"), [("Gemm(xd, wd)", 1), ("Gemm<transB=1>(xd, wd)", 0), ("MatMul(xd, wd)", 1)])
def test_right_scales_agree_within_a_code(op: str, axis: int) -> None:
    model = graph(op, axis=axis)
    result = miscompile.check(subject(model, model, X))
    assert (result.state, result.findings) == ("ok", ())
    assert result.values["largest"] <= 1.001
    assert result.summary.startswith("Outputs agree within one code (")


def test_a_graph_that_only_loads_as_written_is_flagged() -> None:
    text = """
    g (float[N,1,9,9] x) => (float[N,1,5,5] y) {
      xq = QuantizeLinear(x, sx, zx)
      xd = DequantizeLinear(xq, sx, zx)
      m = AveragePool<kernel_shape=[3,3], dilations=[2,2]>(xd)
      mq = QuantizeLinear(m, sx, zx)
      y = DequantizeLinear(mq, sx, zx)
    }"""
    model = build(text, {"sx": np.float32(0.01), "zx": np.uint8(128)}, opset=19, ir_version=9)
    plain = build("g (float[N,1,9,9] x) => (float[N,1,9,9] y) { y = Relu(x) }")
    result = miscompile.check(subject(plain, model, np.zeros((1, 1, 9, 9), np.float32)))
    assert result.state == "flagged"
    assert result.summary.startswith("onnxruntime loads the graph as written, and refuses it with optimisations on: ")
    assert "dilations" in result.summary


class _Shifted:
    """A session whose outputs are some way off."""

    def __init__(self, inner: Any, by: float) -> None:
        self._inner, self._by = inner, by

    def run(self, feeds: Any) -> dict[str, np.ndarray]:
        return {name: array + np.float32(self._by) for name, array in self._inner.run(feeds).items()}


@pytest.mark.parametrize(("by", "state"), [(0.0, "ok"), (0.2, "ok"), (0.41, "ok")])
def test_codes_apart_at_the_output_alone_have_added_up(by: float, state: str) -> None:
    model = graph("MatMul(xd, wd)", axis=1)
    looked_at = subject(model, model, X)
    looked_at._sessions[True] = _Shifted(looked_at.session(optimize=True), by)  # type: ignore[assignment]
    result = miscompile.check(looked_at)
    assert result.state == state
    assert ("from the same codes, each of 3 tensors agrees" in result.summary) == (by > 0.2)
    assert result.values["largest"] == pytest.approx(by / 0.2, abs=1e-3)


@pytest.mark.parametrize(("by", "state"), [(12.0, "ok"), (900.0, "flagged")])
def test_without_codes_inside_the_outputs_may_move_less_than_by_quantization(by: float, state: str) -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { y = MatMul(x, w) }"
    weight = WEIGHT.astype(np.float32)
    reference, other = build(text, {"w": weight}), build(text, {"w": weight + np.float32(120)})
    looked_at = subject(reference, other, X + np.float32(1))
    looked_at._sessions[True] = _Shifted(looked_at.session(optimize=True), by)  # type: ignore[assignment]
    result = miscompile.check(looked_at)
    assert result.state == state
    assert ("more than quantization moves it" in result.summary) == (state == "flagged")


def test_shapes_that_differ_are_infinitely_far() -> None:
    text = "g (float[N,4] x) => (int64[2,M] i, float[M,2] y) { i = NonZero(x) f = Cast<to=1>(i) y = Transpose(f) }"
    model = build(text)
    looked_at = subject(model, model, X)
    whole = looked_at.session(optimize=True)

    class Shorter:
        def run(self, feeds: Any) -> dict[str, np.ndarray]:
            return {name: array[..., :1] for name, array in whole.run(feeds).items()}

    looked_at._sessions[True] = Shorter()  # type: ignore[assignment]
    result = miscompile.check(looked_at)
    assert (result.state, result.values["largest"]) == ("flagged", np.inf)


def test_a_model_that_does_not_load_at_all_is_an_error() -> None:
    model = build("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    with pytest.raises(ModelError, match="is not accepted by onnxruntime"):
        miscompile.check(subject(model, b"no model", X))


def test_differences_count_codes() -> None:
    difference = Difference()
    difference.add(f32(0, 1, 2, np.inf), f32(0, 1.5, 1, np.inf), 0.5)
    assert (difference.largest, difference.beyond, difference.elements) == (2.0, 1, 4)
    difference.add(np.array([0, 255], np.uint8), np.array([255, 254], np.uint8), 1.0)
    assert (difference.largest, difference.beyond, difference.elements) == (255.0, 2, 6)


def test_an_output_without_axes() -> None:
    difference = Difference()
    difference.add(np.array(1, np.float32), np.array(2, np.float32), 0.5)
    assert (difference.largest, difference.beyond, difference.elements) == (2.0, 1, 1)
    difference.add(np.array(np.nan, np.float32), np.array(np.nan, np.float32), 0.5)
    assert (difference.largest, difference.beyond, difference.elements) == (2.0, 1, 2)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_no_number_on_one_side_only_is_infinitely_far(broken: float) -> None:
    difference = Difference()
    difference.add(f32(0, np.nan), f32(broken, np.nan), 1.0)
    assert (difference.largest, difference.beyond) == (np.inf, 1)


@pytest.mark.parametrize("name", ["y", "z"])
def test_an_index_is_not_judged(name: str) -> None:
    text = f"g (float[N,4] x) => (int64[N] {name}) {{ {name} = ArgMax<axis=1, keepdims=0>(x) }}"
    model = build(text)
    result = miscompile.check(subject(model, model, X))
    assert (result.state, result.values["largest"]) == ("ok", 0.0)


@pytest.mark.zoo
def test_the_pieces_of_a_real_model_agree_within_a_code(zoo: Any, tmp_path: Any) -> None:
    import qtool
    from qtool.calibrate.samples import open_samples
    from qtool.evaluate.checks import Subject
    from qtool.runtime import create_session

    path = tmp_path / "q.onnx"
    model = zoo / "digits_resnet_bn.onnx"
    qtool.quantize(model, zoo / "digits_resnet_bn_calib.npz", output=path, format="qdq", samples=8, method="minmax")
    samples = open_samples(str(zoo / "digits_resnet_bn_eval.npz"), create_session(model).inputs, limit=2)
    looked_at = Subject(model, path, samples, num_threads=1)
    feeds = list(samples.batches(1))
    units = {"logits": 0.1}
    local = miscompile._local(looked_at, feeds, units)
    assert local is not None
    assert len(local) == 17
    assert max(difference.largest for difference in local.values()) <= 1.001

import numpy as np
import onnx
import pytest
from onnx import parser

from qtool.calibrate.segments import SegmentedModel, SourceGraph
from qtool.runtime import create_session


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


# a skip connection, a value read inside a body, and a branch that nothing wants
NET = """g (float[N, 4] x, bool c) => (float[N, 4] y, float[M] unused)
<float[4, 4] w = {1, -2, 3, 4, 5, -6, 7, 8, 9, 1, 0, 2, 1, 1, 1, 1}>
{
  a = MatMul(x, w)
  b = Relu(a)
  n = Neg(b)
  s = Shape(n)
  d = If(c) <then_branch = t () => (float[N, 4] p) { p = Add(b, x) },
             else_branch = e () => (float[N, 4] q) { q = Identity(n) }>
  r = Reshape(d, s)
  y = Add(r, x)
  l = Log(x)
  unused = Reshape<allowzero=0>(l, s)
}"""
FEEDS = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "c": np.array(True)}
WANTED = ["a", "b", "n", "d", "y", "x", "w"]


@pytest.mark.parametrize("per_segment", [1, 2, 3, 100])
def test_every_wanted_tensor_is_visited_once_whatever_the_cuts(per_segment):
    proto = model(NET)
    whole = model(NET)
    for name in ("a", "b", "n", "d"):
        whole.graph.output.add().name = name
    expected = create_session(whole).run(FEEDS, ["a", "b", "n", "d", "y"])
    run = SegmentedModel(SourceGraph(proto, None), WANTED, per_segment=per_segment)
    assert (run.fed, run.constants, run.computed) == (["x"], ["w"], ["a", "b", "n", "d", "y"])
    seen = []
    for arrays, alive in run.steps(FEEDS):
        assert alive >= sum(array.nbytes for array in arrays.values())
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, FEEDS["x"] if name == "x" else expected[name])
            seen.append(name)
    assert sorted(seen) == ["a", "b", "d", "n", "x", "y"]
    assert run.constant("w").shape == (4, 4)


def test_values_that_no_array_holds_do_not_cross_a_cut():
    proto = model("""g (float[N] x) => (float[N] y) {
        a = Neg(x)
        q = SequenceConstruct(a, x)
        b = Abs(a)
        i = Constant<value_int=0>()
        z = SequenceAt(q, i)
        y = Add(z, b)
    }""")
    run = SegmentedModel(SourceGraph(proto, None), ["a", "b", "y"], per_segment=1)
    seen = {}
    for arrays, _ in run.steps({"x": np.array([1.0, -2.0], np.float32)}):
        seen |= arrays
    assert {name: array.tolist() for name, array in seen.items()} == {"a": [-1, 2], "b": [1, 2], "y": [0, 4]}


def test_memory_is_that_of_a_segment():
    chain = " ".join(f"t{i + 1} = Neg(t{i})" for i in range(50))
    proto = model(f"g (float[N] t0) => (float[N] t50) {{ {chain} }}")
    names = [f"t{i}" for i in range(1, 51)]
    feeds = {"t0": np.zeros(1000, np.float32)}
    whole = SegmentedModel(SourceGraph(proto, None), names, per_segment=50)
    cut = SegmentedModel(SourceGraph(proto, None), names, per_segment=2)
    assert max(alive for _, alive in whole.steps(feeds)) == 51 * 4000
    assert max(alive for _, alive in cut.steps(feeds)) <= 3 * 4000


def test_ancestors_are_in_the_order_of_the_nodes():
    assert SegmentedModel.ancestors(SourceGraph(model(NET), None), "d") == ["a", "b", "n", "d"]


def test_a_value_of_unknown_rank_crosses_a_cut():
    """onnxruntime shows its shape as that of a scalar; what reads it must not be told so."""
    proto = model("""g (float[2, 3] x, int64[M] s) => (float[2, 6] y) {
        h = Reshape(x, s)
        a = Neg(h)
        y = Concat<axis=1>(a, x)
    }""")
    run = SegmentedModel(SourceGraph(proto, None), ["h", "a", "y"], per_segment=1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen = {name: array for arrays, _ in run.steps({"x": x, "s": np.array([2, 3])}) for name, array in arrays.items()}
    np.testing.assert_array_equal(seen["y"], np.concatenate([-x, x], axis=1))

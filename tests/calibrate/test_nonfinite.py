"""NaN and infinities: who is named, and what is left out."""

import numpy as np
import onnx
import pytest
from onnx import parser

from qtool.calibrate.collect import collect
from qtool.calibrate.nonfinite import skipped_notes
from qtool.calibrate.samples import open_samples
from qtool.errors import DataError
from qtool.runtime import create_session


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


# sample 5 makes a NaN in the root of a difference, far from the tensors that are observed
NET = model("""g (float[N, 3] x, float[N, 3] z) => (float[N, 3] y) {
    d = Sub(x, z)
    [root] r = Sqrt(d)
    e = Exp(r)
    f = Add(e, x)
    y = Relu(f)
    unseen = Log(d)
}""")
X = np.full((9, 3), 4.0, np.float32)
Z = np.ones((9, 3), np.float32)


def observe(tensors, x=X, z=Z, **options):
    samples = open_samples({"x": x, "z": z}, create_session(NET).inputs)
    return collect(NET, tensors, samples, histograms=True, **options)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_the_first_node_that_is_not_finite_is_named_with_its_sample(batch_size, num_threads):
    z = Z.copy()
    z[5, 1] = z[7, 0] = 9.0
    with pytest.raises(DataError) as caught:
        observe(["f", "y"], z=z, batch_size=batch_size, num_threads=num_threads)
    assert caught.value.message == (
        "Sample 5: node 'root' (Sqrt) is the first that is not finite: its output 'r' holds 1 NaN value; "
        "expected finite ones."
    )
    assert "--on-nan skip" in caught.value.hint


def test_an_input_that_holds_it_is_named():
    z = Z.copy()
    z[3] = np.nan
    with pytest.raises(DataError, match=r"^Sample 3: input 'z' holds 3 NaN values; expected finite ones\.$"):
        observe(["y"], z=z)


def test_an_infinity_is_traced_unless_it_is_expected():
    x = X.copy()
    x[2, 0] = 2e38
    z = Z.copy()
    z[2, 0] = -2e38
    with pytest.raises(DataError, match=r"^Sample 2: a Sub node .*: its output 'd' holds 1 infinite value; expected"):
        observe(["y"], x=x, z=z)
    assert observe(["y"], x=x, z=z, allow_inf={"y"})["y"].pos_inf == 1


def test_values_that_are_skipped_are_counted_and_noted():
    z = Z.copy()
    z[5, 1] = z[7, 0] = 9.0
    seen = observe(["d", "r", "y"], z=z, on_nan="skip")
    assert (seen["r"].count, seen["r"].nan, seen["r"].finite, seen["d"].nan) == (27, 2, 25, 0)
    assert int(seen["r"].histogram.sum()) == 25
    assert skipped_notes(seen) == ["NaN values were left out: 2 of 27 in 'r', 2 of 27 in 'y'."]
    assert skipped_notes(observe(["r", "y"])) == []


def test_constant_zero_and_empty_tensors_have_statistics():
    proto = model("""g (float[N, 3] x) => (float[N, 3] y)
        <int64[1] a = {0}, float zero = {0}>
        { c = Mul(x, zero) k = Exp(c) e = Slice(x, a, a, o) y = Add(x, k) }""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "o"))
    samples = open_samples({"x": X}, create_session(proto).inputs)
    seen = collect(proto, ["c", "k", "e"], samples, histograms=True)
    assert (seen["c"].zeros, seen["c"].minimum, seen["c"].maximum) == (27, 0, 0)
    assert (seen["k"].count, seen["k"].minimum, seen["k"].maximum) == (27, 1, 1)
    assert (seen["e"].count, seen["e"].finite, seen["e"].sample_ranges) == (0, 0, 0)

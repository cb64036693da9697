import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qtool.calibrate.methods import METHODS, parse_method
from qtool.calibrate.methods.entropy import _divergences
from qtool.calibrate.statistics import TensorStatistics, merge
from qtool.dtypes import qdtype
from qtool.errors import ConfigError

NAMES = "auto, minmax, percentile[:P], mse, entropy, mean_minmax"
UINT8, INT8 = qdtype("uint8"), qdtype("int8")


def of(values, wanted=None, rows=1):
    return TensorStatistics.of(np.asarray(values, np.float32), histogram=True, wanted=wanted, rows=rows)


def range_of(text, stats, dtype=UINT8, symmetric=False):
    method, parameter = parse_method(text)
    return method.range_of(stats, dtype, symmetric=symmetric, parameter=parameter)


def quantize(x, low, high, steps, symmetric=False):
    """The values behind the codes of x, in float64."""
    low, high = (-max(-low, high), max(-low, high)) if symmetric else (low, high)
    scale = (high - low) / steps
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, steps) - zero) * scale


def squared_error(x, span, steps=255, symmetric=False):
    x = np.asarray(x, np.float64)
    return float(np.sum((quantize(x, *span, steps, symmetric) - x) ** 2))


# ------------------------------------------------------------------------------------- every method of the registry


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("symmetric", [False, True])
@settings(max_examples=30, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32)),
    cut=st.integers(0, 60),
)
def test_ranges_hold_zero_lie_inside_the_data_and_do_not_depend_on_the_split(name, symmetric, x, cut):
    stats = of(x, rows=len(x))
    low, high = range_of(name, stats, INT8 if symmetric else UINT8, symmetric)
    assert type(low) is float
    assert type(high) is float
    assert min(stats.minimum, 0) <= low <= 0 <= high <= max(stats.maximum, 0)
    if stats.finite and (stats.minimum, stats.maximum) != (0, 0):
        assert low < high
    parts = [of(part, rows=len(part)) if len(part) else of(part) for part in (x[cut:], x[:cut])]
    split = merge(*parts)
    assert range_of(name, split, INT8 if symmetric else UINT8, symmetric) == (low, high)


@pytest.mark.parametrize("name", METHODS)
def test_degenerate_data(name):
    assert range_of(name, of([])) == (0, 0)
    assert range_of(name, of([np.inf, -np.inf])) == (0, 0)
    assert range_of(name, of([0, 0, -0.0])) == (0, 0)
    assert range_of(name, of([5, 5, 5])) == (0, 5)
    assert range_of(name, of([-3])) == (-3, 0)


@pytest.mark.parametrize("name", METHODS)
def test_one_sided_data_keeps_its_side(name):
    x = np.abs(np.random.default_rng(0).standard_normal(5000))
    low, high = range_of(name, of(x))
    assert low == 0
    assert high > 2
    low, high = range_of(name, of(-x))
    assert high == 0
    assert low < -2


@pytest.mark.parametrize("name", METHODS)
def test_symmetric_data_has_a_symmetric_range(name):
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    low, high = range_of(name, of(np.concatenate([x, -x])))
    assert low == pytest.approx(-high, abs=2**-9)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.needs_histogram])
def test_methods_that_need_a_histogram_say_so(name):
    with pytest.raises(ValueError, match="hold no histogram"):
        range_of(name, TensorStatistics.of(np.array([1.0, 2.0], np.float32)))


@pytest.mark.parametrize("name", ["auto", "mse", "entropy"])
def test_methods_of_integer_types_say_so(name):
    with pytest.raises(ConfigError, match=f"'{name}' is defined for integer types, not float8e4m3fn"):
        range_of(name, of([1.0]), qdtype("float8e4m3fn"))


# ---------------------------------------------------------------------------------------------------------- parsing


def test_parse_method():
    assert parse_method("minmax") == (METHODS["minmax"], None)
    assert parse_method("percentile") == (METHODS["percentile"], 99.99)
    assert parse_method("percentile:99.9") == (METHODS["percentile"], 99.9)
    assert parse_method("percentile:100")[1] == 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maxmin", f"Unknown range method 'maxmin'; expected one of {NAMES}."),
        ("", f"Unknown range method ''; expected one of {NAMES}."),
        ("minmax:3", "Range method 'minmax' takes no parameter, got '3'."),
        *(
            (
                f"percentile:{bad}",
                f"Range method 'percentile:{bad}': parameter is '{bad}'; expected a number above 0.0 up to 100.0.",
            )
            for bad in ("0", "101", "x", "nan", "")
        ),
    ],
)
def test_methods_that_do_not_exist(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_method(text)
    assert caught.value.message == message


# ------------------------------------------------------------------------------------------------------ percentile


@pytest.mark.parametrize("percent", [90, 99, 99.9, 99.99])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("data", ["normal", "relu", "uniform", "exponential"])
def test_percentile_equals_numpy_to_a_bin(percent, symmetric, data):
    random = np.random.default_rng(0)
    x = {
        "normal": random.standard_normal(20_000),
        "relu": np.maximum(random.standard_normal(20_000), 0),
        "uniform": random.uniform(-3, 1, 20_000),
        "exponential": random.exponential(size=20_000),
    }[data].astype(np.float32)
    stats = of(x)
    got = range_of(f"percentile:{percent}", stats, INT8, symmetric)
    if symmetric:
        cut = np.percentile(np.abs(x), percent)
        expected = (max(-cut, min(0, x.min())), min(cut, x.max()))
    elif x.min() < 0:
        expected = np.percentile(x, [(100 - percent) / 2, 100 - (100 - percent) / 2])
    else:
        expected = (0, np.percentile(x, percent))
    assert got == pytest.approx(tuple(expected), abs=stats.bin_width)


def test_a_tail_of_less_than_one_value_still_clips():
    x = np.random.default_rng(0).exponential(size=10_000).astype(np.float32)
    low, high = range_of("percentile:99.999", of(x))
    assert low == 0
    assert high < x.max()
    assert high == pytest.approx(np.percentile(x, 99.999), abs=of(x).bin_width)
    assert range_of("percentile:100", of(x)) == (0, float(x.max()))


# ------------------------------------------------------------------------------------------------------------- mse


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("data", ["normal", "laplace", "relu", "skewed"])
def test_mse_is_close_to_brute_force(data, bits, symmetric):
    random = np.random.default_rng(1)
    x = {
        "normal": random.standard_normal(20_000),
        "laplace": random.laplace(size=20_000),
        "relu": np.maximum(random.laplace(size=20_000), 0),
        "skewed": random.gamma(2.0, size=20_000) - 1,
    }[data].astype(np.float32)
    dtype = qdtype({(4, False): "uint4", (4, True): "int4", (8, False): "uint8", (8, True): "int8"}[bits, symmetric])
    steps = (1 << bits) - (2 if symmetric and bits == 8 else 1)
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    if symmetric and bits == 4:  # [-8, 7]: compare on the side that has 8 codes
        x = -np.abs(x)
        low, high, symmetric_steps = float(x.min()), 0.0, 8
        got = squared_error(x, range_of("mse", of(x), dtype, True), symmetric_steps)
        best = min(squared_error(x, (low * c, 0.0), symmetric_steps) for c in np.linspace(0.1, 1, 91))
    elif symmetric:
        got = squared_error(x, range_of("mse", of(x), dtype, True), steps, True)
        widest = max(-low, high)
        best = min(squared_error(x, (-widest * c, widest * c), steps) for c in np.linspace(0.1, 1, 91))
    else:
        got = squared_error(x, range_of("mse", of(x), dtype), steps)
        grid = np.linspace(0.1, 1, 19)
        best = min(squared_error(x, (low * a, high * b), steps) for a in (grid if low else [1]) for b in grid)
    assert got <= best * 1.05


@settings(max_examples=40, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-100, 100, width=32)),
    outlier=st.sampled_from([0.0, 1e3, -1e4]),
)
def test_mse_is_not_worse_than_minmax(x, outlier):
    x = np.append(x, np.float32(outlier))
    stats = of(x)
    low, high = range_of("minmax", stats)
    if low == high:
        return
    bins = stats.finite * stats.bin_width**2  # all that the histogram does not know
    error = squared_error(x, range_of("mse", stats))
    assert error <= squared_error(x, (low, high)) * 1.5 + bins


# --------------------------------------------------------------------------------------------------------- entropy


def test_entropy_clips_long_tails_and_leaves_bounded_data_alone():
    random = np.random.default_rng(0)
    bounded = random.uniform(-1, 1, 50_000)
    low, high = range_of("entropy", of(bounded))
    assert low < -0.95
    assert high > 0.95
    tailed = np.append(random.standard_normal(50_000), [40.0, -40.0])
    low, high = range_of("entropy", of(tailed))
    assert -8 < low < -3
    assert 3 < high < 8


def test_entropy_is_not_swamped_by_the_zeros_of_a_relu():
    x = np.maximum(np.random.default_rng(0).standard_normal(50_000), 0)
    low, high = range_of("entropy", of(x))
    assert low == 0
    assert 3 < high <= x.max()


def test_entropy_of_more_levels_than_bins_keeps_everything():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert range_of("entropy", of(x), qdtype("uint16")) == (float(x.min()), float(x.max()))
    assert math.isfinite(range_of("entropy", of(x[:1]), qdtype("uint16"))[0])


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 5, 40, 1000]), min_size=1, max_size=60),
    st.sampled_from([2, 4, 7, 16]),
)
def test_divergences_are_what_their_definition_says(counts, levels):
    counts = np.asarray([*counts, 3], np.float64)
    lengths = np.flatnonzero(counts) + 1
    assert _divergences(counts, lengths, levels) == pytest.approx(
        defined_divergences(counts, lengths, levels), abs=1e-12
    )


@pytest.mark.parametrize("levels", [8, 128, 256])
@pytest.mark.parametrize("kind", ["normal", "tailed", "few", "sparse", "equal"])
def test_divergences_of_long_histograms(kind, levels):
    rng = np.random.default_rng(5)
    counts = {
        "normal": lambda: np.histogram(np.abs(rng.standard_normal(100_000)), 3000)[0],
        "tailed": lambda: np.histogram(np.abs(rng.standard_t(2, 100_000)), 4096)[0],
        "few": lambda: rng.integers(0, 5, 100),
        "sparse": lambda: np.where(rng.random(4000) < 0.02, rng.integers(1, 2**40, 4000), 0),
        "equal": lambda: np.full(2000, 7),
    }[kind]().astype(np.float64)
    filled = np.flatnonzero(counts) + 1
    lengths = np.append(filled[:: max(1, len(filled) // 20)], filled[-1])
    expected = defined_divergences(counts[: filled[-1]], lengths, levels)
    assert _divergences(counts[: filled[-1]], lengths, levels) == pytest.approx(expected, abs=1e-11)


def defined_divergences(counts, lengths, levels):
    """Bin by bin: what is clipped joins P in the last bin, and the bins of a group share their mass in Q."""
    found = []
    for length in lengths:
        kept = counts[:length]
        p, q = kept.copy(), np.zeros(length)
        p[-1] += counts[length:].sum()
        group = np.arange(length) * min(levels, length) // length
        for number in np.unique(group):
            inside = (group == number) & (kept > 0)
            q[inside] = kept[inside].sum() / max(1, inside.sum())
        some = p > 0
        found.append(float(np.sum(p[some] * np.log(p[some] / q[some]) - p[some] + q[some]) / counts.sum()))
    return found

import json
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qtool import reference
from qtool.calibrate import statistics
from qtool.calibrate.statistics import HISTOGRAM_BITS, MIN_EXPONENT, Statistics, TensorStatistics, merge
from qtool.calibrate.wanted import Wanted

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 2.0**-64, -(2.0**20), 2.0**-149, 3.4028234663852886e38]
)
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, min_side=0, max_side=12), elements=FLOATS)


def of(array, histogram=True):
    return TensorStatistics.of(np.asarray(array, np.float32), histogram=histogram)


@settings(max_examples=60, deadline=None)
@given(array=ARRAYS)
def test_equals_the_oracle(array):
    stats = of(array)
    count, nan, pos_inf, neg_inf, zeros, low, high = reference.min_max(array)
    assert (stats.count, stats.nan, stats.pos_inf, stats.neg_inf, stats.zeros) == (count, nan, pos_inf, neg_inf, zeros)
    assert (stats.minimum, stats.maximum) == (low, high)
    assert stats.histogram.sum() == stats.finite
    np.testing.assert_array_equal(
        stats.histogram, reference.power_of_two_histogram(array, stats.exponent, HISTOGRAM_BITS)
    )
    if stats.finite and max(-low, high) > 0:
        widest = max(-low, high)
        assert widest < 2.0**stats.exponent
        assert stats.exponent == MIN_EXPONENT or widest >= 2.0 ** (stats.exponent - 1)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(ARRAYS, max_size=5), data=st.data(), histogram=st.booleans())
def test_splitting_order_and_merging_change_nothing(parts, data, histogram):
    whole = TensorStatistics.empty(histogram=histogram)
    for part in parts:
        whole.update(part)
    shuffled = data.draw(st.permutations(parts))
    streamed, merged = TensorStatistics.empty(histogram=histogram), TensorStatistics.empty(histogram=histogram)
    for part in shuffled:
        streamed.update(part)
        merged = merge(of(part, histogram), merged)
    assert streamed == whole
    assert merged == whole


@given(a=ARRAYS, b=ARRAYS)
@settings(max_examples=25, deadline=None)
def test_merge_is_commutative_and_leaves_its_arguments(a, b):
    one, two = of(a), of(b)
    before = (one.to_dict(), two.to_dict())
    assert merge(one, two) == merge(two, one)
    assert (one.to_dict(), two.to_dict()) == before


def test_a_power_of_two_opens_the_next_exponent():
    assert of([1.0]).exponent == 1
    assert of([np.nextafter(np.float32(1), np.float32(0))]).exponent == 0
    assert of([-1.0]).exponent == 1
    assert of([0.0, 0.0]).exponent == MIN_EXPONENT


def test_nothing_seen():
    stats = of([])
    assert (stats.count, stats.finite, stats.minimum, stats.maximum) == (0, 0, math.inf, -math.inf)
    assert stats.to_dict()["minimum"] is None
    only_nan = of([np.nan, np.inf])
    assert (only_nan.count, only_nan.nan, only_nan.pos_inf, only_nan.finite) == (2, 1, 1, 0)


def test_merging_with_and_without_histogram_is_refused():
    with pytest.raises(ValueError, match="Only one of the two"):
        merge(of([1.0]), of([1.0], histogram=False))


def test_statistics_are_a_mapping_that_merges():
    a = Statistics({"x": of([1.0]), "y": of([2.0])}, samples=1)
    b = Statistics({"y": of([-3.0]), "x": of([4.0])}, samples=2)
    both = a.merged(b)
    assert list(both) == ["x", "y"]
    assert both.samples == 3
    assert both["x"] == TensorStatistics.of(np.array([1, 4], np.float32), histogram=True, rows=2)
    assert both == b.merged(a)
    assert json.loads(json.dumps(both.to_dict(), allow_nan=False))["tensors"]["y"]["minimum"] == -3.0
    with pytest.raises(ValueError, match="not about the same tensors"):
        a.merged(Statistics({"x": of([1.0])}, samples=1))


# ------------------------------------------------------------------------------------------ single samples, channels

WANTED = Wanted("x", channel_axis=-1, channel_energy=np.array([1.0, 0.25, 3.0]))
SAMPLES = st.integers(0, 5).flatmap(
    lambda length: st.lists(hnp.arrays(np.float32, (length, 3), elements=FLOATS), min_size=1, max_size=6)
)


def stacked(samples, dtype=np.float32):
    """Samples as a batch, each `length` rows of axis 0."""
    with np.errstate(over="ignore"):
        return np.concatenate(samples).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, data=st.data(), dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))
def test_batches_of_any_size_in_any_order_give_the_same(samples, data, dtype):
    whole = TensorStatistics.empty(histogram=True, wanted=WANTED)
    for sample in samples:
        whole.update(stacked([sample], dtype))
    shuffled = data.draw(st.permutations(samples))
    total = TensorStatistics.empty(histogram=True, wanted=WANTED)
    while shuffled:
        size = data.draw(st.integers(1, len(shuffled)))
        batch, shuffled = shuffled[:size], shuffled[size:]
        array = stacked(batch, dtype)
        if data.draw(st.booleans()):
            total.update(array, rows=size)
        else:
            total = merge(TensorStatistics.of(array, histogram=True, wanted=WANTED, rows=size), total)
    assert total == whole


@settings(max_examples=40, deadline=None)
@given(samples=SAMPLES)
def test_samples_and_channels_equal_the_definition(samples):
    stats = TensorStatistics.of(stacked(samples), wanted=WANTED, rows=len(samples))
    finite = [s[np.isfinite(s)] for s in samples]
    ranges = [(Fraction(float(f.min())), Fraction(float(f.max()))) for f in finite if f.size]
    assert stats.sample_ranges == len(ranges)
    assert Fraction(stats.sample_min_sum, 2**149) == sum(low for low, _ in ranges)
    assert Fraction(stats.sample_max_sum, 2**149) == sum(high for _, high in ranges)
    if ranges:
        assert stats.mean_maximum == float(sum(high for _, high in ranges) / len(ranges))
    every = np.concatenate([np.where(np.isfinite(s), np.abs(s), 0) for s in [*samples, np.zeros((1, 3), np.float32)]])
    np.testing.assert_array_equal(stats.channel_absmax, every.max(axis=0), strict=True)


@settings(max_examples=40, deadline=None)
@given(array=hnp.arrays(np.float32, (2, 3), elements=FLOATS), times=st.integers(1, 5))
def test_a_shared_array_counts_as_often_as_there_are_samples(array, times):
    once, often = (TensorStatistics.empty(histogram=True, wanted=WANTED) for _ in range(2))
    once.update(array, rows=times, shared=True)
    for _ in range(times):
        often.update(array)
    assert once == often


def test_long_samples_are_counted_one_by_one_with_the_same_result(monkeypatch):
    array = np.random.default_rng(0).standard_normal((6, 40), np.float32)
    array[2, 3], array[4] = np.inf, np.nan
    short = TensorStatistics.of(array, rows=6)
    monkeypatch.setattr(statistics, "_LONG_SAMPLE", 1)
    assert TensorStatistics.of(array, rows=6) == short
    assert short.sample_ranges == 5


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("axis", [None, 1, -1])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
def test_one_pass_is_what_kernel_after_kernel_says(rows, axis, bad):
    x = np.random.default_rng(3).standard_normal((2, 5, 50, 30)).astype(np.float32)
    if bad is not None:
        x[1, 2, 3, 4] = bad
    wanted = Wanted("x", axis)
    for histogram in (False, True):
        together, apart = (TensorStatistics.empty(histogram=histogram, wanted=wanted) for _ in range(2))
        for scale in (1.0, 100.0, 0.1):
            together.update(np.float32(scale) * x, rows=rows, num_threads=1)
            apart.update(np.float32(scale) * x, rows=rows, num_threads=2)
        assert together == apart
        assert together.exponent == (apart.exponent if histogram else None)


def test_the_mean_range_by_hand():
    stats = TensorStatistics.of(np.array([[-1.0, 2.0], [3.0, 5.0], [np.nan, np.inf]], np.float32), rows=3)
    assert (stats.sample_ranges, stats.mean_minimum, stats.mean_maximum) == (2, 1.0, 3.5)
    assert (stats.sample_min_sum, stats.sample_max_sum) == (2 << 149, 7 << 149)
    nothing = of([np.nan])
    assert (nothing.sample_ranges, nothing.mean_minimum, nothing.mean_maximum) == (0, math.inf, -math.inf)
    extreme = np.float32(3.4028234663852886e38)
    assert TensorStatistics.of(np.full((4, 1), extreme), rows=4).mean_maximum == float(extreme)


def test_channels_by_hand():
    array = np.array([[[1, -4], [0, np.nan]], [[-2, 3], [-np.inf, 0.5]]], np.float32)
    along = {axis: TensorStatistics.of(array, wanted=Wanted("x", axis)) for axis in (0, 1, -1)}
    assert along[0].channel_absmax.tolist() == [4, 3]
    assert along[1].channel_absmax.tolist() == [4, 0.5]
    assert along[-1].channel_absmax.tolist() == [2, 4]
    assert of(array).channel_absmax is None
    assert TensorStatistics.empty(histogram=False, wanted=WANTED).channel_absmax.tolist() == [0, 0, 0]
    assert TensorStatistics.empty(histogram=False, wanted=Wanted("x", 1)).channel_absmax is None


def test_what_does_not_go_together_is_refused():
    array = np.ones((3, 2), np.float32)
    with pytest.raises(ValueError, match=r"shape \[3, 2\] does not divide into 2 samples"):
        TensorStatistics.of(array, rows=2)
    with pytest.raises(ValueError, match="0 samples"):
        TensorStatistics.of(array, rows=0)
    a, b = (TensorStatistics.of(array, wanted=Wanted("x", axis)) for axis in (0, 1))
    with pytest.raises(ValueError, match="channel axes 0 and 1"):
        merge(a, b)
    assert merge(a.without_channels(), b.without_channels()) == merge(
        TensorStatistics.of(array), TensorStatistics.of(array)
    )
    with pytest.raises(ValueError, match="number of channels is 3 in one array and 4"):
        a.update(np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match="different channel energies"):
        merge(a, TensorStatistics.of(array, wanted=Wanted("x", 0, np.ones(3))))


@pytest.mark.parametrize("energy", [np.ones(3, np.float32), np.ones((1, 3)), np.array([1.0, np.nan]), np.array([-1.0])])
def test_energies_that_are_none(energy):
    with pytest.raises(ValueError, match="Channel energies of 'x'"):
        Wanted("x", 0, energy)


def test_energies_belong_to_an_axis_and_are_not_shared_with_the_caller():
    with pytest.raises(ValueError, match="without a channel axis"):
        Wanted("x", None, np.ones(3))
    energy = np.ones(3)
    wanted = Wanted("x", 0, energy)
    energy[0] = 7
    assert wanted.channel_energy.tolist() == [1, 1, 1]

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qtool import reference
from qtool.calibrate.statistics import HISTOGRAM_BITS, MIN_EXPONENT, Statistics, TensorStatistics, merge

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
    whole = of(np.concatenate([p.ravel() for p in parts]) if parts else [], histogram)
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
    assert both["x"] == of([1.0, 4.0])
    assert both == b.merged(a)
    assert json.loads(json.dumps(both.to_dict(), allow_nan=False))["tensors"]["y"]["minimum"] == -3.0
    with pytest.raises(ValueError, match="not about the same tensors"):
        a.merged(Statistics({"x": of([1.0])}, samples=1))

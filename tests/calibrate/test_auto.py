"""The default method: what it looks at beside the values, and what ``compare`` says about all methods."""

from math import inf

import numpy as np
import pytest

from qtool.calibrate.methods import METHODS
from qtool.calibrate.methods._bins import filled_bins
from qtool.calibrate.methods.auto import channel_weights, explained, range_of, without_unseen
from qtool.calibrate.methods.comparison import compare
from qtool.calibrate.statistics import TensorStatistics, merge
from qtool.calibrate.wanted import Wanted
from qtool.dtypes import qdtype

UINT8, INT8 = qdtype("uint8"), qdtype("int8")


def of(values, wanted=None):
    return TensorStatistics.of(np.asarray(values, np.float32), histogram=True, wanted=wanted)


def auto(stats, dtype=UINT8, symmetric=False):
    return range_of(stats, dtype, symmetric=symmetric, parameter=None)


def mse(stats, dtype=UINT8, symmetric=False):
    return METHODS["mse"].range_of(stats, dtype, symmetric=symmetric, parameter=None)


def tailed(seed=0, outliers=(10.0, -10.0)):
    return np.append(np.random.default_rng(seed).standard_normal(400_000), outliers).astype(np.float32)


def test_an_outlier_is_clipped_and_bounded_data_are_not():
    low, high = auto(of(tailed()))
    assert -7 < low < -4
    assert 4 < high < 7
    bounded = np.random.default_rng(0).uniform(-1, 1, 50_000).astype(np.float32)
    assert auto(of(bounded)) == (float(bounded.min()), float(bounded.max()))


def test_nothing_is_clipped_for_less_than_a_tenth_of_the_error():
    x = np.random.default_rng(0).uniform(0, 1, 20_000).astype(np.float32)
    x[:2] = 1.03  # 1.03^2 is 6 % more than 1
    span, why = explained(of(x), UINT8, symmetric=False)
    assert span == (0, float(np.float32(1.03)))
    assert why == "clipping gains less than a tenth"


def test_values_below_the_bins_keep_their_extremes():
    x = np.random.default_rng(0).standard_normal(2_000).astype(np.float32) * np.float32(1e-30)
    span, why = explained(of(x), UINT8, symmetric=False)
    assert span == (float(x.min()), float(x.max()))
    assert why == "too small for the histogram"
    resolved = explained(of(tailed() * np.float32(2.0**-60)), UINT8, symmetric=False)[0]
    assert resolved == pytest.approx(np.array(auto(of(tailed()))) * 2.0**-60, rel=1e-3)


@pytest.mark.parametrize("symmetric", [False, True])
def test_without_channels_it_is_at_least_nearly_as_good_as_mse(symmetric):
    stats = of(tailed(3))
    low, high = auto(stats, INT8, symmetric)
    best = mse(stats, INT8, symmetric)
    assert (low, high) == pytest.approx(best, rel=0.1)


def test_channels_whose_weights_are_large_are_not_clipped():
    random = np.random.default_rng(0)
    x = random.standard_normal((20_000, 4)).astype(np.float32)
    x[::100, 3] = 20.0  # a channel of its own
    light = Wanted("x", -1, np.array([1.0, 1.0, 1.0, 1e-6]))
    heavy = Wanted("x", -1, np.array([1e-6, 1e-6, 1e-6, 1.0]))
    even = Wanted("x", -1, np.ones(4))
    assert auto(of(x, even)) == auto(of(x))
    assert auto(of(x, light))[1] < 10
    assert auto(of(x, heavy))[1] > 19


def test_weights_of_bins_are_means_over_the_channels_that_reach_them():
    x = np.array([[1.0, 4.0, 8.0], [0.5, 2.0, -16.0]], np.float32)
    stats = of(x, Wanted("x", -1, np.array([3.0, 6.0, 0.75])))
    assert stats.channel_absmax.tolist() == [1, 4, 16]
    bins = filled_bins(stats)
    mean = 9.75 / 3
    expected = {-16: 0.75, 0.5: mean, 1: mean, 2: 6.75 / 2, 4: 6.75 / 2, 8: 0.75}
    assert bins.low.tolist() == list(expected)
    assert (channel_weights(stats, bins) * mean).tolist() == pytest.approx(list(expected.values()))


def test_a_clip_weight_widens_the_range_and_an_infinite_one_keeps_all():
    x = tailed(1, outliers=np.linspace(6, 12, 4))
    highs = [auto(of(x, Wanted("x", clip_weight=weight)))[1] for weight in (1.0, 2.0, 8.0, inf)]
    assert highs == sorted(highs)
    assert highs[0] < 8 < highs[2]
    assert highs[-1] == 12
    assert explained(of(x, Wanted("x", clip_weight=inf)), UINT8, symmetric=False)[1].startswith("only the largest")


def test_values_below_the_floor_get_no_codes():
    x = np.random.default_rng(0).uniform(-10, 4, 10_000).astype(np.float32)
    span, why = explained(of(x, Wanted("x", floor=-3.5)), UINT8, symmetric=False)
    assert span == (-3.5, float(x.max()))
    assert why.endswith("readers see next to nothing below -3.5")
    assert auto(of(-np.ones(5) * 9, Wanted("x", floor=-3.5))) == (-3.5, 0)
    unchanged = of(np.abs(x), Wanted("x", floor=-3.5))
    assert without_unseen(unchanged) is unchanged


def test_statistics_without_what_is_unseen_are_those_of_the_maximum():
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    seen = without_unseen(of(x, Wanted("x", floor=-0.5)))
    expected = of(np.maximum(x, -0.5))
    assert (seen.minimum, seen.maximum, seen.count, seen.floor) == (-0.5, expected.maximum, 10_000, -inf)
    assert seen.histogram.tolist() == expected.histogram.tolist()


@pytest.mark.parametrize("name", METHODS)
def test_what_the_model_says_survives_a_merge(name):
    wanted = Wanted("x", -1, np.array([1.0, 5.0, 0.0]), 2.0, -1.0, 3.0)
    x = np.random.default_rng(0).standard_normal((4000, 3)).astype(np.float32) ** 3
    split = merge(of(x[:1000], wanted), merge(of(x[1000:1003], wanted), of(x[1003:], wanted)))
    method = METHODS[name]
    if name != "mean_minmax":  # it is about samples, and these are split into others
        whole = method.range_of(of(x, wanted), UINT8, symmetric=False, parameter=method.default)
        assert method.range_of(split, UINT8, symmetric=False, parameter=method.default) == whole
    with pytest.raises(ValueError, match="different things about the readers"):
        merge(of(x, wanted), of(x, Wanted("x", -1, np.array([1.0, 5.0, 0.0]))))


@pytest.mark.parametrize(("weight", "floor"), [(0.5, -1.0), (1.0, 0.5), (float("nan"), -1.0)])
def test_what_a_model_cannot_say(weight, floor):
    with pytest.raises(ValueError, match="'x' is out of bounds"):
        Wanted("x", clip_weight=weight, floor=floor)


def test_mean_minmax_is_the_mean_over_samples():
    method = METHODS["mean_minmax"]
    x = np.array([[1.0, -2.0], [3.0, -4.0], [5.0, 0.0]], np.float32)
    stats = TensorStatistics.of(x, rows=3)
    assert method.range_of(stats, UINT8, symmetric=False, parameter=None) == (-2, 3)
    one_sign_each = TensorStatistics.of(np.array([[1.0], [-1.0]], np.float32), rows=2)
    assert method.range_of(one_sign_each, UINT8, symmetric=False, parameter=None) == (-1, 1)


# -------------------------------------------------------------------------------------------------------- comparison


def test_compare_lists_every_method_and_explains_the_default():
    stats = of(tailed())
    rows = compare(stats, UINT8, False)
    assert [row.name for row in rows] == [
        *("auto", "minmax", "percentile:99.9", "percentile:99.99", "percentile:99.999", "mse", "entropy", "mean_minmax")
    ]
    assert [row.name for row in rows if row.chosen] == ["auto"]
    assert rows[0].why.endswith("of the error of minmax")
    assert (rows[0].lo, rows[0].hi) == auto(stats)
    by_name = {row.name: row for row in rows}
    assert by_name["minmax"].clipped_fraction == 0
    assert by_name["percentile:99.9"].clipped_fraction == pytest.approx(1e-3, rel=0.1)
    assert by_name["auto"].sqnr_db > by_name["minmax"].sqnr_db + 2


@pytest.mark.parametrize(
    ("values", "span", "why"), [([], (0, 0), "no finite value"), ([0, 0], (0, 0), "no value but 0")]
)
def test_compare_of_nothing(values, span, why):
    rows = compare(of(values), UINT8, False)
    assert {(row.lo, row.hi) for row in rows} == {span}
    assert rows[0].why == why


# ------------------------------------------------------------------------------------------------------------- OCTAV


def octav(magnitudes, bits, rounds=50):
    """OCTAV (Sakr et al., 2022): Newton's iteration for the symmetric clipping point of least squared error."""
    s = float(magnitudes.mean())
    for _ in range(rounds):
        clipped = magnitudes > s
        inside = (magnitudes <= s) & (magnitudes > 0)
        s = float(magnitudes[clipped].sum() / (4.0**-bits / 3.0 * inside.sum() + clipped.sum()))
    return s


@pytest.mark.parametrize("distribution", ["laplace", "standard_normal"])
def test_mse_finds_the_clipping_point_of_octav(distribution):
    x = getattr(np.random.default_rng(0), distribution)(size=400_000).astype(np.float32)
    low, high = mse(of(x), INT8, True)
    found, expected = max(-low, high), octav(np.abs(x.astype(np.float64)), 8)
    assert found == pytest.approx(expected, rel=0.08)
    if distribution == "laplace":
        assert expected == pytest.approx(10.15, abs=0.4)

    def error(cut):
        scale = cut / 127
        return float(((np.clip(np.rint(x / scale), -127, 127) * scale - x) ** 2).mean())

    assert error(found) <= error(expected) * 1.01

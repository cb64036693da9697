"""The judgement of ``auto`` on whole models: the formulas by hand, and what is concluded from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.evaluate.whole_model import (
    AutoCheck,
    Energies,
    Gain,
    MethodTrial,
    carriers,
    gain_of,
    gains,
    is_behind,
    is_better,
    least,
    telling_gains,
)

INF = math.inf


def noise(**outputs: object) -> Energies:
    arrays = {name: np.asarray(values, np.float64) for name, values in outputs.items()}
    return Energies({name: np.ones_like(values) for name, values in arrays.items()}, arrays)


def test_the_gain_by_hand():
    gain = gain_of(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    assert gain.db == pytest.approx(10 * math.log10(2))
    # shares 1/4 and 3/4 against 1/2 and 1/2: both differ by 1/4
    assert gain.error == pytest.approx(10 / math.log(10) * math.sqrt(2 * 2 / 16))


def test_a_common_factor_has_no_error():
    auto = np.array([1.0, 5.0, 2.0])
    gain = gain_of(auto, auto / 4)
    assert gain.db == pytest.approx(10 * math.log10(4))
    assert gain.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("auto", "other", "expected"),
    [
        ([0, 0], [0, 0], None),
        ([2, 1], [2, 1], None),
        ([1, 1], [0, 0], Gain(INF, 0.0)),
        ([0, 0], [1, 0], Gain(-INF, 0.0)),
        ([INF, 1], [1, 1], Gain(INF, 0.0)),
        ([1, 1], [1, INF], Gain(-INF, 0.0)),
        ([INF, 1], [INF, 1], Gain(-INF, 0.0)),
    ],
)
def test_the_gain_at_the_limits(auto, other, expected):
    assert gain_of(np.asarray(auto, np.float64), np.asarray(other, np.float64)) == expected


def test_one_sample_has_no_error_estimate():
    assert gain_of(np.array([4.0]), np.array([1.0])).error == INF


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.floats(0.01, 100)] * 2), min_size=2, max_size=20))
def test_the_gain_of_the_other_side_is_the_opposite(pairs):
    auto, other = np.asarray(pairs, np.float64).T
    if np.array_equal(auto, other):
        return
    one, two = gain_of(auto, other), gain_of(other, auto)
    assert one.db == pytest.approx(-two.db, abs=1e-9)
    assert one.error == pytest.approx(two.error)


def test_carriers():
    assert carriers(np.array([2.0, 2.0, 2.0])) == 3.0
    assert carriers(np.array([5.0, 0.0, 0.0])) == 1.0
    assert carriers(np.zeros(4)) == 4.0
    assert carriers(np.array([INF, 1.0])) == 2.0


def test_better_takes_a_sure_gain_at_every_output_from_many_samples():
    auto = noise(y=np.linspace(1, 2, 16), z=np.ones(16))
    assert is_better(auto, noise(y=np.linspace(1, 2, 16) / 2, z=np.full(16, 0.5)))
    assert not is_better(auto, noise(y=np.linspace(1, 2, 16) / 2, z=np.full(16, 0.99)))  # 0.04 dB
    assert not is_better(auto, noise(y=np.linspace(1, 2, 16) / 2, z=np.full(16, 2.0)))
    assert not is_better(auto, auto)
    uneven = np.where(np.arange(16) % 2, 0.1, 1.7)  # less on the whole, but now more and now less
    assert gains(noise(y=np.ones(16)), noise(y=uneven))[0].db > 0.4
    assert not is_better(noise(y=np.ones(16)), noise(y=uneven))
    one = np.r_[100.0, np.full(15, 0.1)]
    assert not is_better(noise(y=one), noise(y=one / 2))


def test_outputs_that_tell_nothing_have_no_say_but_a_veto():
    """At z one sample has all of the error."""
    one = np.r_[100.0, np.full(15, 0.1)]
    auto, half = noise(y=np.ones(16), z=one), np.full(16, 0.5)
    assert is_better(auto, noise(y=half, z=one))
    assert is_better(auto, noise(y=half, z=one * 0.5))
    assert not is_better(auto, noise(y=half, z=one * 2.0))
    assert [gain.db for gain in telling_gains(auto, noise(y=half, z=one))] == [pytest.approx(10 * math.log10(2))]
    assert len(gains(auto, noise(y=half, z=one / 2))) == 2


def test_a_method_that_leaves_its_error_to_one_sample_must_gain_much():
    """As one that clips does. One sample with all of the error is a standard error of 10 / ln 10 = 4.34 dB."""
    auto = noise(y=np.ones(32))
    (gain,) = telling_gains(auto, noise(y=np.r_[2.0, np.zeros(31)]))
    assert gain.db == pytest.approx(10 * math.log10(16))
    assert gain.error == pytest.approx(10 / math.log(10))
    assert is_better(auto, noise(y=np.r_[2.0, np.zeros(31)]))  # 12.0 dB; 2.5 errors are 10.9
    assert not is_better(auto, noise(y=np.r_[3.0, np.zeros(31)]))  # 10.3 dB
    assert not telling_gains(noise(y=np.r_[2.0, np.zeros(31)]), auto)


def test_outputs_that_a_method_does_not_change_do_not_count():
    assert is_better(noise(y=np.ones(16), z=np.ones(16)), noise(y=np.full(16, 0.5), z=np.ones(16)))
    assert is_better(noise(y=np.ones(16), z=np.zeros(16)), noise(y=np.full(16, 0.5), z=np.zeros(16)))
    assert not is_better(noise(z=np.zeros(16)), noise(z=np.zeros(16)))


def test_a_broken_model_loses_to_any_other():
    broken, sound = noise(y=[INF] * 16), noise(y=np.ones(16))
    assert is_better(broken, sound)
    assert not is_better(sound, broken)
    assert is_behind(sound, broken, 16)


def test_behind():
    auto = noise(y=np.ones(8), z=np.ones(8))
    assert is_behind(auto, noise(y=np.full(8, 0.1), z=np.full(8, 1.1)), 32)
    assert is_behind(auto, auto, 32)
    # so uneven that more samples may turn it
    assert not is_behind(auto, noise(y=np.full(8, 0.1), z=[4, 0.1, 0.1, 0.1, 4, 0.1, 0.1, 0.1]), 32)
    # one sample has the error of z, which says nothing yet
    assert not is_behind(auto, noise(y=np.full(8, 0.1), z=[40, 0, 0, 0, 0, 0, 0, 0]), 32)
    assert is_behind(auto, noise(y=np.full(8, 0.1), z=np.full(8, 1.1)), 8)


def test_gains_are_of_the_samples_that_both_have():
    auto = noise(y=[1.0, 1.0, 9.0])
    assert gains(auto, noise(y=[0.5, 0.5]))[0].db == pytest.approx(10 * math.log10(2))
    assert least([Gain(1.0, 0.2), Gain(-1.0, 0.1), Gain(-1.0, 0.5)]) == Gain(-1.0, 0.5)


def test_json_holds_no_infinities():
    check = AutoCheck("auto", 16, "why", (MethodTrial("mse", 16, {"y": INF}, Gain(-INF, 0.0)),))
    assert check.to_dict() == {
        "chosen": "auto",
        "samples": 16,
        "reason": "why",
        "trials": [{"method": "mse", "samples": 16, "sqnr_db": {"y": "inf"}, "gain_db": "-inf", "gain_error_db": 0.0}],
    }
    assert check.message() == "auto, tensor by tensor: why"

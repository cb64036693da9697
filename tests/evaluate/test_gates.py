from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from qtool.errors import ConfigError
from qtool.evaluate.gates import RATIOS, Gate, check, parse_gate, parse_gates, required_metrics
from qtool.evaluate.metrics import METRICS
from qtool.evaluate.report import Latency, OutputReport, Report, Sizes


def report(
    *outputs: Mapping[str, float | None], latency: Latency | None = None, failures: tuple[str, ...] = ()
) -> Report:
    return Report(
        float_model="a.onnx",
        quantized_model="b.onnx",
        metrics=tuple(outputs[0]),
        outputs=tuple(OutputReport(f"y{i}", "float32", (1,), 1, values) for i, values in enumerate(outputs)),
        samples=1,
        sources=(),
        sizes=Sizes(400, 100),
        latency=latency,
        failures=failures,
    )


@pytest.mark.parametrize(
    ("text", "over", "gate"),
    [
        ("sqnr=30", False, Gate("sqnr", 30.0, False)),
        (" sqnr = -1.5e1 ", False, Gate("sqnr", -15.0, False)),
        ("sqnr=inf", False, Gate("sqnr", math.inf, False)),
        ("top1=0.95", False, Gate("top1", 0.95, False)),
        ("cosine=-1", False, Gate("cosine", -1.0, False)),
        ("max_abs=0", True, Gate("max_abs", 0.0, True)),
        ("mean_abs=.5", True, Gate("mean_abs", 0.5, True)),
        ("size_ratio=3", False, Gate("size_ratio", 3.0, False)),
        ("latency_ratio=1", False, Gate("latency_ratio", 1.0, False)),
    ],
)
def test_parse(text: str, over: bool, gate: Gate) -> None:
    assert parse_gate(text, over=over) == gate


@pytest.mark.parametrize(
    ("text", "over", "message", "hint"),
    [
        ("sqnr", False, "not of the form NAME=VALUE", "--fail-under sqnr=30"),
        ("=3", False, "not of the form NAME=VALUE", "--fail-under sqnr=30"),
        ("max_abs=", True, "not of the form NAME=VALUE", "--fail-over max_abs=0.1"),
        ("sqrn=30", False, "unknown metric 'sqrn'; expected one of: sqnr, cosine, max_abs", None),
        ("sqnr=high", False, "'high' is not a number", "sqnr=30"),
        ("sqnr=nan", False, "'nan' is not a number", "sqnr=30"),
        ("sqnr=30=2", False, "'30=2' is not a number", "sqnr=30"),
        ("max_abs=0.1", False, "lower is better", "Write --fail-over max_abs=0.1."),
        ("sqnr=30", True, "higher is better", "Write --fail-under sqnr=30."),
        ("size_ratio=2", True, "higher is better", "Write --fail-under size_ratio=2."),
        ("top1=95", False, "top1 lies between 0 and 1", "Write top1=0.95 for 95 %."),
        ("cosine=2", False, "cosine lies between -1 and 1", None),
        ("mean_abs=-1", True, "mean_abs lies between 0 and inf", None),
    ],
)
def test_parse_refuses(text: str, over: bool, message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gate(text, over=over)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert (caught.value.hint is None) == (hint is None)
    assert hint is None or hint in str(caught.value.hint)


@pytest.mark.parametrize("name", [*METRICS, *RATIOS])
def test_every_name_has_exactly_one_direction(name: str) -> None:
    accepted = []
    for over in (False, True):
        try:
            accepted.append(
                parse_gate(f"{name}={max(0.5, METRICS[name].bounds[0]) if name in METRICS else 0.5}", over=over)
            )
        except ConfigError:
            continue
    assert len(accepted) == 1
    assert accepted[0].name == name


def test_required_metrics() -> None:
    gates = parse_gates(["size_ratio=2", "top1=0.9", "sqnr=30"], ["max_abs=1"])
    assert required_metrics(gates, labels=True) == ("sqnr", "max_abs", "top1")
    with pytest.raises(ConfigError, match="'top1' compares with labels"):
        required_metrics(gates, labels=False)
    assert required_metrics((), labels=False) == ()


def test_the_worst_output_counts() -> None:
    found = report({"sqnr": 40.0, "max_abs": 0.1}, {"sqnr": 20.0, "max_abs": 0.5})
    assert check(found, parse_gates(["sqnr=20"], ["max_abs=0.5"])) == ()
    assert check(found, parse_gates(["sqnr=20.01"], ["max_abs=0.4"])) == (
        "sqnr of output 'y1' is 20 dB, below 20.01 dB.",
        "max_abs of output 'y1' is 0.5, over 0.4.",
    )


def test_nan_fails_and_none_is_no_verdict() -> None:
    gates = parse_gates(["sqnr=-1000"])
    assert check(report({"sqnr": 40.0}, {"sqnr": math.nan}), gates) == (
        "sqnr of output 'y1' is nan dB, below -1000 dB.",
    )
    assert check(report({"sqnr": None}, {"sqnr": 5.0}), gates) == ()
    assert check(report({"sqnr": None}, {"sqnr": None}), gates) == (
        "sqnr is not defined for any output, so '--fail-under sqnr=-1000' cannot pass.",
    )
    over = parse_gates([], ["max_abs=1000"])
    assert check(report({"max_abs": math.nan}, {"max_abs": 1.0}), over) == (
        "max_abs of output 'y0' is nan, over 1000.",
    )


def test_infinite_threshold_demands_equal_outputs() -> None:
    gates = parse_gates(["sqnr=inf"])
    assert check(report({"sqnr": math.inf}), gates) == ()
    assert len(check(report({"sqnr": 150.0}), gates)) == 1


def test_what_always_fails_fails_without_gates() -> None:
    assert check(report({"sqnr": 1.0}, failures=("broken",)), ()) == ("broken",)
    assert check(report({"sqnr": 1.0}), ()) == ()


def test_ratios() -> None:
    timed = report({"sqnr": 1.0}, latency=Latency(2.0, 4.0, 3, 3, 1, None))
    assert check(timed, parse_gates(["size_ratio=4", "latency_ratio=0.5"])) == ()
    assert check(timed, parse_gates(["size_ratio=4.1", "latency_ratio=1"])) == (
        "size_ratio is 4, below 4.1.",
        "latency_ratio is 0.5, below 1.",
    )
    with pytest.raises(ConfigError, match="latency was not measured"):
        check(report({"sqnr": 1.0}), parse_gates(["latency_ratio=1"]))


def test_a_gate_on_what_was_not_computed_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cosine was not computed; the report has: sqnr") as caught:
        check(report({"sqnr": 1.0}), parse_gates(["cosine=0.9"]))
    assert caught.value.hint is None
    with pytest.raises(ConfigError, match="top1 was not computed") as caught:
        check(report({"sqnr": 1.0}), parse_gates(["top1=0.9"]))
    assert "--labels" in str(caught.value.hint)

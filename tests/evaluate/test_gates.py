from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from qtool.errors import ConfigError
from qtool.evaluate.gates import (
    RATIOS,
    Gate,
    check,
    judge,
    judged,
    min_agreement,
    parse_gate,
    parse_gates,
    require_latency,
    required_metrics,
    with_required,
)
from qtool.evaluate.metrics import METRICS
from qtool.evaluate.report import GateResult, Latency, OutputReport, Report, Sizes, Statistic


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
        ("drop=0.5pp", True, Gate("drop", 0.5, True, "pp")),
        ("drop = 1 %", True, Gate("drop", 1.0, True, "%")),
        ("drop:f1=-1pp", True, Gate("drop:f1", -1.0, True, "pp")),
        ("drop:perplexity=2%", True, Gate("drop:perplexity", 2.0, True, "%")),
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
        ("sqnr_p6=3", False, "did you mean 'sqnr_p5'?", None),
        ("drop=1", True, "a drop is in percentage points or percent", "drop=0.5pp, or drop=1%"),
        ("drop=highpp", True, "a drop is in percentage points or percent", "drop=0.5pp, or drop=1%"),
        ("drop=1pp", False, "a smaller drop is better", "Write --fail-over drop=1pp."),
        ("drop:f2=1pp", True, "no drop of 'f2'; expected one of: top1, top5, f1", None),
        ("drop:sqnr=1pp", True, "no drop of 'sqnr'", None),
        ("drop:perplexity=1pp", True, "perplexity is no share", "Write drop:perplexity=1%"),
        ("drop:=1pp", True, "no drop of ''", None),
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


# -------------------------------------------------------------------------------------------------------------- drops


def labelled(
    *pairs: tuple[float | None, float | None], metric: str = "top1", statistic: Statistic | None = None
) -> Report:
    """Outputs whose metric is (float, quantized)."""
    return Report(
        float_model=None,
        quantized_model=None,
        metrics=(metric,),
        outputs=tuple(
            OutputReport(
                f"y{i}",
                "float32",
                (1,),
                1,
                {metric: found},
                {metric: ours},
                statistics={} if statistic is None else {metric: statistic},
            )
            for i, (ours, found) in enumerate(pairs)
        ),
        samples=1,
        sources=(),
        sizes=Sizes(1, 1),
        latency=None,
        labels="l",
        label_kind="class indices" if metric == "top1" else "regression targets" if metric == "r2" else None,
    )


@pytest.mark.parametrize(
    ("gate", "pairs", "metric", "value"),
    [
        ("drop=0.5pp", [(0.95, 0.945)], "top1", 0.5),
        ("drop=0.5pp", [(0.9, 0.95)], "top1", -5.0),
        ("drop=1%", [(0.8, 0.792)], "top1", 1.0),
        ("drop=3pp", [(0.9, 0.89), (0.9, 0.87), (None, None)], "top1", 3.0),
        ("drop=0pp", [(0.0, 0.0)], "top1", 0.0),
        ("drop=1pp", [(0.5, 0.49)], "r2", 1.0),
        ("drop:perplexity=10%", [(20.0, 22.0)], "perplexity", 10.0),
        ("drop:perplexity=0%", [(math.inf, math.inf)], "perplexity", 0.0),
        ("drop:cer=5pp", [(0.1, 0.15)], "cer", 5.0),
        ("drop:mse=0%", [(0.5, 0.25)], "mse", -50.0),
    ],
)
def test_drops_that_pass(gate: str, pairs: list[tuple[float | None, float | None]], metric: str, value: float) -> None:
    (result,) = judge(labelled(*pairs, metric=metric), parse_gates([], [gate]))
    assert result.value == value
    assert result.passed


@pytest.mark.parametrize(
    ("gate", "pairs", "metric", "line"),
    [
        ("drop=0.5pp", [(0.95, 0.94)], "top1", "drop of top1 of output 'y0' is 1 pp, over 0.5 pp."),
        ("drop=1%", [(0.8, 0.79)], "top1", "drop of top1 of output 'y0' is 1.25 %, over 1 %."),
        ("drop=1pp", [(0.8, math.nan)], "top1", "drop of top1 of output 'y0' is nan pp, over 1 pp."),
        ("drop=1pp", [(0.8, 0.8), (None, math.nan)], "top1", "drop of top1 of output 'y1' is nan pp, over 1 pp."),
        (
            "drop=1pp",
            [(None, None)],
            "top1",
            "drop of top1 is not defined for any output, so '--fail-over drop=1pp' cannot pass.",
        ),
        ("drop:mse=5%", [(0.0, 0.1)], "mse", "drop of mse of output 'y0' is inf %, over 5 %."),
    ],
)
def test_drops_that_fail(gate: str, pairs: list[tuple[float | None, float | None]], metric: str, line: str) -> None:
    assert check(labelled(*pairs, metric=metric), parse_gates([], [gate])) == (line,)


def test_a_drop_says_what_the_samples_cannot_show() -> None:
    wide = Statistic(200, 0.9, 0.9, 0.0, interval=(-0.02, 0.01), method="score", detectable=0.03)
    (result,) = judge(labelled((0.9, 0.9), statistic=wide), parse_gates([], ["drop=0.5pp"]))
    assert result.passed
    assert result.line == (
        "drop of top1 of output 'y0' is 0 pp, at most 0.5 pp. Its 95 % interval is -1 to 2 pp: "
        "n=200 cannot show a drop below 3 pp."
    )
    (result,) = judge(labelled((0.9, 0.9), statistic=wide), parse_gates([], ["drop=4pp"]))
    assert result.line.endswith("Its 95 % interval is -1 to 2 pp.")


def test_a_drop_without_what_it_is_of() -> None:
    with pytest.raises(ConfigError, match="drop was not computed") as caught:
        judge(report({"sqnr": 1.0}), parse_gates([], ["drop=1pp"]))
    assert "--labels" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="f1 was not computed"):
        judge(labelled((0.9, 0.9)), parse_gates([], ["drop:f1=1pp"]))
    with pytest.raises(ConfigError, match="'--fail-over drop=1pp' is on the metric against labels"):
        required_metrics(parse_gates([], ["drop=1pp"]), labels=False)


# ---------------------------------------------------------------------------------------------------------- agreement


def test_min_agreement() -> None:
    (gate,) = parse_gates(agreement=99.0)
    assert str(gate) == "--min-agreement 99"
    assert required_metrics([gate], labels=False) == ("top1_agreement",)
    found = report({"top1_agreement": 1.0}, {"top1_agreement": 0.985})
    assert judge(found, [gate]) == (
        GateResult(
            "agreement",
            "--min-agreement 99",
            99.0,
            over=False,
            unit="%",
            value=98.5,
            output="y1",
            passed=False,
            line="top1_agreement of output 'y1' is 98.5 %, below 99 %.",
        ),
    )
    assert judge(report({"top1_agreement": 0.99}), [gate])[0].passed
    assert not judge(report({"top1_agreement": None}), [gate])[0].passed
    assert not judge(report({"top1_agreement": math.nan}), [gate])[0].passed


@pytest.mark.parametrize(
    ("percent", "hint"), [(101.0, None), (-1.0, None), (0.99, "--min-agreement 99"), (math.nan, None)]
)
def test_min_agreement_is_percent(percent: float, hint: str | None) -> None:
    with pytest.raises(ConfigError, match="expected percent") as caught:
        min_agreement(percent)
    assert hint is None or hint in str(caught.value.hint)


# ----------------------------------------------------------------------------------------------------------- outcomes


def test_outcomes_are_part_of_the_report() -> None:
    gates = parse_gates({"sqnr": 20, "size_ratio": 5}, {"max_abs": 0.5})
    found = judged(report({"sqnr": 40.0, "max_abs": 0.1}), gates)
    assert [gate.passed for gate in found.gates] == [True, False, True]
    assert [gate.line for gate in found.gates] == [
        "sqnr of output 'y0' is 40 dB, at least 20 dB.",
        "size_ratio is 4, below 5.",
        "max_abs of output 'y0' is 0.1, at most 0.5.",
    ]
    assert not found.passed
    assert judged(report({"sqnr": 40.0, "max_abs": 0.1}), gates[::2]).passed
    assert not judged(report({"sqnr": 40.0}, failures=("broken",)), gates[:1]).passed


def test_metrics_that_gates_need() -> None:
    assert with_required(None, ["sqnr", "max_abs"]) is None
    assert with_required(None, ["kl", "sqnr"]) == ["default", "kl"]
    assert with_required(None, ["primary"]) == ["default", "primary"]
    assert with_required(["cosine"], ["kl"]) == ["cosine", "kl"]


def test_latency_must_be_measured() -> None:
    gates = parse_gates(["latency_ratio=1"])
    require_latency(gates, "ort", latency=True)
    require_latency((), "spec", latency=False)
    with pytest.raises(ConfigError, match="not measured with --engine spec"):
        require_latency(gates, "spec", latency=True)
    with pytest.raises(ConfigError, match="--no-latency was given"):
        require_latency(gates, "ort", latency=False)

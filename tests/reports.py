"""Reports for the tests of the forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from qtool.evaluate.attribution.report import (
    Attribution,
    Cause,
    Command,
    InputHistogram,
    LayerReport,
    Sensitivity,
    UnitSensitivity,
)
from qtool.evaluate.candidates import Comparison, compare_reports
from qtool.evaluate.checks.result import CheckResult, Finding
from qtool.evaluate.details import Details, ModelFile, StoredTensor, TypeShare
from qtool.evaluate.report import GateResult, Latency, OutputReport, Report, Sizes, Source, Statistic

HOSTILE = "<script>window.pwned=1;alert(1)</script>\"'`|@all\u202e\x1b[31m</style></svg>$x_1$ 日本語 ünï" + "long/" * 60
"""A node name that tries everything: markup, quotes, control characters, other scripts, mathematics, length."""
SHOWN = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")

HOLDS = GateResult("sqnr", "--fail-under sqnr=20", 20.0, False, "dB", 24.5, "y", True, "sqnr of output 'y' is 24.5 dB.")
FAILS = GateResult(
    "drop", "--fail-over drop=0.5pp", 0.5, True, "pp", 1.25, "y", False, "drop of output 'y' is 1.25 pp, over 0.5 pp."
)


def histogram(tensor: str = "x", **changes: Any) -> InputHistogram:
    counts = tuple(int(1000 * math.exp(-(((i - 32) / 9) ** 2))) for i in range(64))
    return replace(InputHistogram(tensor, -6.0, 7.0, counts, -4.0, 4.0, 0.03, 0.0012, 214, 256), **changes)


def layer(name: str, share: float | None, own: float | None, **changes: Any) -> LayerReport:
    base = LayerReport(
        node=name, op_type="MatMul", output=f"{name}_out", own_db=own, weight_db=40.0, clip_db=math.inf, round_db=35.0,
        inherited_db=30.0, total_db=28.0, share=share, share_measured=True, clipped=0.0012, levels_used=214, levels=256,
        weight="int8 per channel (axis 1)", cause=Cause.ROUNDING, histograms=(histogram(f"{name}_in"),),
    )  # fmt: skip
    return replace(base, **changes)


def small(**changes: Any) -> Report:
    """One output, one metric, no gates."""
    outputs = (OutputReport("y", "float32", ("N", 3), 30, {"sqnr": 24.5}),)
    base = Report("f.onnx", "q.onnx", ("sqnr",), outputs, 10, (), Sizes(4000, 1000), None)
    return replace(base, **changes)


def model_file(metadata: dict[str, str] | None = None) -> ModelFile:
    types = (TypeShare("int8", 3, 9000), TypeShare("float32", 5, 400), TypeShare("int64", 2, 16))
    return ModelFile("ab" * 32, 10000, 17, 8, 12, types, metadata or {})


def full(name: str = "layer", **changes: Any) -> Report:
    """Everything that a report can hold; ``name`` is the model's for whatever it names."""
    statistic = Statistic(40, 0.98, 0.95, -0.03, (-0.08, 0.01), "score", 0.4, 2, 1, 0.05)
    agreement = Statistic(40, interval=(0.9, 1.0), method="bootstrap")
    values: dict[str, float | None] = {"sqnr": 24.5, "max_abs": 0.25, "top1_agreement": 0.975, "top1": 0.95}
    outputs = (
        OutputReport(name, "float32", (name, 10), 400, values, {"top1": 0.98},
                     statistics={"top1": statistic, "top1_agreement": agreement}),
        OutputReport("state", "float32", (None,), 4, {"sqnr": math.inf, "max_abs": math.nan, "top1_agreement": None}),
    )  # fmt: skip
    layers = (
        layer(name, 0.5, 18.0, suggestion=f"--exclude {name}", histograms=(histogram(name), histogram("b"))),
        layer("second", 0.0004, 33.0, cause=Cause.WEIGHT, clipped=None, levels=None, histograms=()),
        layer("third", None, None, cause=Cause.NONE, total_db=math.nan, histograms=(histogram(range_low=None),)),
    )
    command = Command(f"qtool quantize {name} --exclude {name}", f"returns {name} to float")
    config = {"config": '{"method": "auto", "per_channel": true, "block": null, "exclude": ["a"]}', "version": "1"}
    tensors = (StoredTensor(name, "int8", (64, 128), 8192), StoredTensor("scale", "float32", (), 4))
    checks = (
        CheckResult("miscompile", "Miscompile", "ok", "Both runs agree.", samples=4),
        CheckResult(
            "ranges", "Calibrated ranges", "flagged", "1 input leaves its range.",
            (Finding(name, f"value of {name} leaves the range", f"--calib {name}"),),
        ),
        CheckResult("memory", "Memory", "skipped", "There is no /proc."),
    )  # fmt: skip
    return small(
        checks=checks,
        float_model=f"/models/{name.replace('/', '-')}.onnx",
        metrics=("sqnr", "max_abs", "top1_agreement", "top1"),
        outputs=outputs,
        samples=40,
        sources=(Source(name, "cd" * 32),),
        latency=Latency(4.0, 2.0, 7, 70, 8, 2),
        notes=(f"note about {name}",),
        gates=(HOLDS, replace(FAILS, line=f"drop of output '{name}' is 1.25 pp, over 0.5 pp.")),
        layers=Attribution(layers, 16, (command,), ((name, f"no float tensor for {name}"),), (f"about {name}",)),
        sensitivity=Sensitivity((UnitSensitivity(name, "Conv", 30.25, 5.75),), 16, 24.5),
        details=Details(model_file(), model_file(config), tensors, 7, 1234, True, "0.1.0"),
        **changes,
    )


def compared(name: str = "a.onnx") -> Comparison:
    """Four candidates: two that are Pareto-best, one that is not, and one that fails."""

    def one(path: str, sqnr: float | None, size: int, ms: float, failures: tuple[str, ...] = ()) -> Report:
        outputs = (OutputReport(name, "float32", ("N", 3), 30, {"sqnr": sqnr, "max_abs": 0.5}),)
        return small(
            quantized_model=path, metrics=("sqnr", "max_abs"), outputs=outputs, sizes=Sizes(4000, size),
            latency=Latency(2.0, ms, 3, 3, 1, None), failures=failures, notes=(f"note about {name}",),
            sources=(Source("eval.npz", "ab" * 32),),
        )  # fmt: skip

    return compare_reports(
        [
            one(name, 35.5, 1200, 1.5),
            one("b.onnx", 28.0, 1000, 1.0),
            one("c.onnx", 27.0, 1300, 1.2),
            one("d.onnx", math.nan, 500, 0.5, (f"Output '{name}' holds NaN.",)),
        ]
    )

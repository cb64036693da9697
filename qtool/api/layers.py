"""The part of evaluate() that looks inside the models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.api.clock import Clock
from qtool.api.settings import Progress
from qtool.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from qtool.calibrate.samples import Samples
    from qtool.evaluate.attribution.tally import InputTally
    from qtool.evaluate.report import Report

WITHOUT_VNNI = "spec-avx2"
"""The engine that computes as a processor whose sums of two products saturate."""


def require_layers(engine: str, *, layers: bool, layer_samples: int | None, sensitivity: bool) -> None:
    """Refuse what cannot be done before an evaluation is run.

    Raises:
        ConfigError: If layers are to be looked at in an engine that cannot, or their samples are none.
    """
    if layers and engine not in ("ort", WITHOUT_VNNI):
        raise ConfigError(
            f"Layers are looked at in onnxruntime only, or as '{WITHOUT_VNNI}' would compute each; the engine is "
            f"'{engine}'.",
            hint="Leave out --engine, or --layers and --sensitivity.",
        )
    if sensitivity and engine != "ort":
        raise ConfigError(
            f"Sensitivity is measured in onnxruntime only; the engine is '{engine}'.",
            hint="Leave out --engine, or --sensitivity.",
        )
    if layer_samples is None:
        return
    if not (layers or sensitivity):
        raise ConfigError(
            "A number of samples for layers is given, and layers are not looked at.",
            hint="Add --layers or --sensitivity, or leave out --layer-samples.",
        )
    if layer_samples < 1:
        raise ConfigError(f"Number of samples for layers is {layer_samples}; expected 1 or more.")


def with_layers(
    report: Report,
    reference: str | Path | onnx.ModelProto,
    candidate: str | Path | onnx.ModelProto,
    samples: Samples,
    *,
    layers: bool,
    layer_samples: int | None,
    sensitivity: bool,
    num_threads: int | None,
    progress: Progress | None,
    engine: str = "ort",
    watch: Callable[[InputTally], None] | None = None,
) -> Report:
    """The report with what was asked for about layers.

    Args:
        report: What there is already.
        reference: The float model.
        candidate: The quantized model.
        samples: Inputs of the float model.
        layers: See :func:`qtool.api.evaluate`, as for all that follows.
        layer_samples: Of both.
        sensitivity: The same.
        num_threads: Of each session.
        progress: Called with the stage, what is done, and all.
        engine: Of the comparison.
        watch: Called with what was seen of each quantized activation.
    """
    from qtool.evaluate.attribution.attribute import attribute
    from qtool.evaluate.sensitivity import measure_sensitivity
    from qtool.runtime.lean import release

    clock = Clock(progress)
    if layers or sensitivity:
        release(cycles=False)  # what the comparison took
    if layers:
        found = attribute(
            reference,
            candidate,
            samples,
            layer_samples=layer_samples,
            num_threads=num_threads,
            progress=clock.progress("layers"),
            watch=watch,
            without_vnni=engine == WITHOUT_VNNI,
        )
        report = replace(report, layers=found)
    if sensitivity:
        gains = measure_sensitivity(
            reference,
            candidate,
            samples,
            layer_samples=layer_samples,
            num_threads=num_threads,
            progress=clock.progress("sensitivity"),
        )
        report = replace(report, sensitivity=gains)
    return report

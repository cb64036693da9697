"""The lines at the end of a report: commands to paste, made of what the quantized file says about itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qtool.evaluate.attribution.command import (
    Origin,
    calibration_files,
    command,
    fresh_output,
    origin_of,
    unknown_settings,
)
from qtool.evaluate.attribution.report import Command

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples

Option: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Starting:
    """What every command has.

    Attributes:
        origin: How the quantized file was made.
        model: Path of the float model.
        output: Where the new file goes.
        calibration: Files to calibrate on; none: not known.
    """

    origin: Origin
    model: str
    output: str
    calibration: tuple[str, ...]

    @classmethod
    def of(
        cls,
        proto: onnx.ModelProto,
        float_model: str | PathLike[str] | onnx.ModelProto,
        quant_model: str | PathLike[str] | onnx.ModelProto,
        samples: Samples,
        calibration: Sequence[str] | None,
    ) -> Starting:
        """Read the quantized model's record, and look for its calibration data where that names none."""
        origin = origin_of(proto)
        source, target = _path(float_model), _path(quant_model)
        if calibration is None:
            near = [path for path in (source, target, *(one.path for one in samples.sources)) if path]
            stem = "" if source is None else Path(source).stem
            calibration = calibration_files(origin.calibration, [Path(path).parent for path in near], stem)
        output = "MODEL.int8.onnx" if target is None else fresh_output(target)
        return cls(origin, source or "MODEL.onnx", output, tuple(calibration))


def commands_of(starting: Starting, choices: Iterable[tuple[Sequence[Option], str]]) -> tuple[list[Command], list[str]]:
    """Commands, and what a reader should know about them.

    Args:
        starting: What they share.
        choices: (options, why) of each.
    """
    origin = starting.origin
    lines = [
        Command(command(origin, starting.model, starting.output, starting.calibration, options), why)
        for options, why in choices
    ]
    notes = []
    if lines and origin.needs_samples and origin.random is None and not starting.calibration:
        notes.append("CALIB in the commands stands for the samples that the model is to be calibrated on.")
    if lines and origin.config is None:
        notes.append("The quantized model does not record qtool's settings: the commands have the default ones.")
    unknown = unknown_settings(origin)
    if lines and unknown:
        notes.append(f"The commands lack settings that have no option of their own: {', '.join(unknown)}.")
    return lines, notes


def _path(model: str | PathLike[str] | onnx.ModelProto) -> str | None:
    return fspath(model) if isinstance(model, (str, PathLike)) else None

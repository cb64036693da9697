"""The lines at the end of a report: commands to paste, made of what the quantized file says about itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qtool.errors import QtoolError
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
        samples: How many of their samples the file was made with, if not with all.
    """

    origin: Origin
    model: str
    output: str
    calibration: tuple[str, ...]
    samples: int | None = None

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
        fewer = _fewer(origin, calibration, samples) if origin.needs_samples else None
        return cls(origin, source or "MODEL.onnx", output, tuple(calibration), fewer)


def commands_of(starting: Starting, choices: Iterable[tuple[Sequence[Option], str]]) -> tuple[list[Command], list[str]]:
    """Commands, and what a reader should know about them.

    Args:
        starting: What they share.
        choices: (options, why) of each.
    """
    origin = starting.origin
    lines = [
        Command(command(origin, starting.model, starting.output, starting.calibration, options, starting.samples), why)
        for options, why in choices
    ]
    notes = []
    if lines and origin.needs_samples and origin.random is None and not starting.calibration:
        notes.append("CALIB in the commands stands for the samples that the model is to be calibrated on.")
    if lines and starting.samples is not None:
        count = f"{starting.samples} sample{'' if starting.samples == 1 else 's'}"
        notes.append(
            f"The quantized model was made with {count}, fewer than the data hold; the commands take the first ones. "
            "If they were shuffled, add the --shuffle of then."
        )
    if lines and origin.config is None:
        notes.append("The quantized model does not record qtool's settings: the commands have the default ones.")
    unknown = unknown_settings(origin)
    if lines and unknown:
        notes.append(f"The commands lack settings that have no option of their own: {', '.join(unknown)}.")
    return lines, notes


def _fewer(origin: Origin, calibration: Sequence[str], samples: Samples) -> int | None:
    """The recorded number of samples where the files hold more."""
    from qtool.calibrate.samples import open_samples

    if origin.samples is None or not calibration:
        return None
    try:
        held = open_samples(list(calibration), samples.inputs).count
    except QtoolError:  # files that the caller names may be anything
        return None
    return origin.samples if origin.samples < held else None


def _path(model: str | PathLike[str] | onnx.ModelProto) -> str | None:
    return fspath(model) if isinstance(model, (str, PathLike)) else None

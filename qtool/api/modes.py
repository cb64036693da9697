"""What the modes of quantize() do not use is refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping

from qtool.config import QuantConfig
from qtool.errors import ConfigError


def refuse_unused(settings: QuantConfig, given: Mapping[str, object]) -> None:
    """Refuse arguments about calibration in a mode that calibrates nothing, and about inference where there is none.

    Args:
        settings: What is asked for.
        given: Arguments of :func:`quantize` by name; None is one that is not given.

    Raises:
        ConfigError: For the first one that would be ignored.
    """
    names = [name for name, value in given.items() if value is not None]
    if settings.weight_only:
        _refuse(names, "weight-only mode", "Drop it; measure the result on samples with 'qtool eval'.")
    elif settings.dynamic:
        rest = [name for name in names if name not in ("calib", "samples", "shuffle")]
        _refuse(rest, "dynamic mode", "Drop it; samples given with --calib are those that the result is verified on.")
    elif "stats" in names:
        _refuse_with_statistics(names)


def _refuse(names: list[str], mode: str, hint: str) -> None:
    for name in names:
        raise ConfigError(f"Option {_flag(name)} is about calibration; {mode} calibrates nothing.", hint=hint)


def _refuse_with_statistics(names: list[str]) -> None:
    """Saved statistics replace the run that these say how to do."""
    for name in ("batch", "on_nan"):
        if name in names:
            raise ConfigError(
                f"Option {_flag(name)} is about running the model on samples; with --stats it is not run.",
                hint="It belongs to 'qtool calibrate', which makes the statistics.",
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

"""The most that the multiply-add units of this processor do: what the matrix kernels are measured against."""

from __future__ import annotations

from typing import Literal, get_args

from qtool import _core
from qtool.errors import KernelError

Peak = Literal["vnni", "avxvnni", "amx"]


def peak(name: Peak, seconds: float = 0.02) -> float | None:
    """Operations per second of a dot-product instruction on registers alone, one thread, measured now.

    A multiplication and an addition are two operations.

    Args:
        name: ``vnni`` (vpdpbusd on zmm), ``avxvnni`` (vpdpbusd on ymm) or ``amx`` (tdpbusd).
        seconds: How long to measure, above 0.

    Returns:
        None if this processor, or its operating system, does not have the instruction.

    Raises:
        KernelError: If there is no such name, or no time to measure.
    """
    if name not in get_args(Peak) or not seconds > 0:
        raise KernelError(f"Peak '{name}' over {seconds} s; expected {', '.join(get_args(Peak))}, and a time above 0.")
    return _core.peak(name, seconds)

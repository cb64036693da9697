"""Distances between a float reference and a candidate that both publish and evaluate need."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def sqnr_db(reference: npt.NDArray[np.generic], candidate: npt.NDArray[np.generic]) -> float:
    """Signal-to-quantization-noise ratio in decibels: 10*log10(sum(x^2) / sum((x-y)^2)), summed in float64.

    Args:
        reference: x, any shape, any real dtype.
        candidate: y, same shape.

    Returns:
        dB; ``inf`` if the arrays are equal, ``-inf`` if x is all zero and y is not, ``nan`` if either holds a NaN or
        an infinity that the other has not at the same place.

    Raises:
        ValueError: If the shapes differ.
    """
    return db(*signal_and_noise(reference, candidate))


def signal_and_noise(reference: npt.NDArray[np.generic], candidate: npt.NDArray[np.generic]) -> tuple[float, float]:
    """(sum(x^2), sum((x-y)^2)) in float64: the two sums add over batches, decibels do not.

    Places where both hold the same infinity or both hold NaN count as equal and carry no signal.
    """
    if reference.shape != candidate.shape:
        raise ValueError(f"Shapes differ: reference {reference.shape}, candidate {candidate.shape}.")
    x = reference.astype(np.float64)
    y = candidate.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    # the same infinity (or NaN) on both sides is agreement, and inf - inf would hide it
    special = same & ~np.isfinite(x)
    x = np.where(special, 0.0, x)
    y = np.where(special, 0.0, y)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.sum(x * x)), float(np.sum((x - y) ** 2))


def db(signal: float, noise: float) -> float:
    """Decibels of a signal and a noise energy; see :func:`sqnr_db` for the degenerate cases."""
    if np.isnan(signal) or np.isnan(noise) or np.isinf(noise):
        return float("nan")
    if noise == 0.0:
        return float("inf")
    if signal == 0.0:
        return float("-inf")
    return float(10.0 * np.log10(signal / noise))

"""Ranges to scales and zero points (numerics.md 5): the range contains 0, and 0 is exactly representable.

    s = (hi - lo) / (qmax - qmin)          z = saturate(rint(qmin - lo / s))            asymmetric integer
    s = max(|lo|, |hi|) / qmax             z = a constant of the type                   symmetric

All arithmetic is float64; the scale is rounded once to its storage type and the zero point is computed from the
rounded scale, so that the pair that is written is the pair that was meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.dtypes import QDType
from qtool.granularity import Granularity, PerTensor


@dataclass(frozen=True, eq=False)
class QParams:
    """Scale and zero point of one tensor.

    Attributes:
        dtype: Element type of the codes.
        scale: float32 (or float16, bfloat16, e8m0), shape ``granularity.scale_shape(x.shape)``, finite, normal;
            positive, but for weights of int4 and int2 in weight-only mode.
        zero_point: Storage dtype of ``dtype``, shape of ``scale``.
        granularity: How the tensor is cut into blocks.
    """

    dtype: QDType
    scale: npt.NDArray[Any]
    zero_point: npt.NDArray[Any]
    granularity: Granularity

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and self.granularity == other.granularity
            and self.scale.dtype == other.scale.dtype
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point.astype(np.float32), other.zero_point.astype(np.float32))
        )

    def __hash__(self) -> int:
        return hash((self.dtype.name, self.granularity, self.scale.tobytes(), self.zero_point.tobytes()))

    @property
    def range(self) -> tuple[float, float]:
        """(smallest, largest) representable value; of a per-axis tensor, the widest."""
        scale = self.scale.astype(np.float64)
        zero = self.zero_point.astype(np.float64)
        low, high = (self.dtype.qmin - zero) * scale, (self.dtype.qmax - zero) * scale
        return float(np.min(low)), float(np.max(high))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready summary; per-axis parameters are given by their shape and extremes."""
        row: dict[str, Any] = {"dtype": self.dtype.name, "granularity": repr(self.granularity)}
        if self.scale.ndim == 0:
            return row | {"scale": float(self.scale), "zero_point": float(self.zero_point)}
        return row | {
            "scales": int(self.scale.size),
            "scale_min": float(self.scale.min()),
            "scale_max": float(self.scale.max()),
        }


def _guarded(scale: npt.NDArray[np.float64], storage: npt.DTypeLike, span: float) -> npt.NDArray[Any]:
    """Round a scale to its storage type; zero ranges become 1, underflow the smallest safe value of the type.

    "Safe": the type's smallest normal number, so that a division by it is exact in the type and no flush-to-zero mode
    can turn it into a division by zero.
    """
    import ml_dtypes

    dtype = np.dtype(storage)
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    tiny, largest = float(info.tiny), float(info.max)
    # a range whose span (hi - lo) fits no finite scale would overflow on its way back, also if its scale is rounded up
    cap = largest / max(span, 1.0) * (1.0 - float(info.eps))
    scale = np.where(scale == 0.0, 1.0, np.clip(scale, tiny, cap))
    rounded = scale.astype(dtype)
    return np.where(rounded.astype(np.float64) < tiny, np.asarray(tiny, dtype), rounded).astype(dtype)


def activation_qparams(
    low: float, high: float, dtype: QDType, *, symmetric: bool = False, storage: npt.DTypeLike = np.float32
) -> QParams:
    """Per-tensor parameters of a range.

    Args:
        low: Smallest value, finite. The range is widened to contain 0.
        high: Largest value, finite, >= low.
        dtype: An integer type, or a minifloat (then always symmetric).
        symmetric: Use the type's constant zero point.
        storage: dtype of the scale.

    Examples: uint8 [2, 10] -> (10/255, 0); [-4, -1] -> (4/255, 255); all zero -> (1, 0).

    Raises:
        ValueError: If the range is not finite or upside down.
    """
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise ValueError(f"Range [{low}, {high}] is not a finite range.")
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    if symmetric or not dtype.is_integer:
        widest = max(-low, high)
        return symmetric_qparams(np.array(-widest), np.array(widest), dtype, storage=storage)
    span = dtype.qmax - dtype.qmin
    scale = _guarded(np.array((high - low) / span), storage, span)
    zero = np.rint(dtype.qmin - low / scale.astype(np.float64))
    zero = np.clip(zero, dtype.qmin, dtype.qmax)
    if low == 0.0:
        zero = np.array(dtype.qmin)
    elif high == 0.0:
        zero = np.array(dtype.qmax)
    return QParams(dtype, scale, np.asarray(zero).astype(dtype.numpy), PerTensor())


def symmetric_qparams(
    low: npt.NDArray[np.floating[Any]],
    high: npt.NDArray[np.floating[Any]],
    dtype: QDType,
    *,
    granularity: Granularity | None = None,
    storage: npt.DTypeLike = np.float32,
) -> QParams:
    """Symmetric parameters from the extremes of each block.

    8 and 16 bits give up the one extra negative code, so that -x is representable where x is: [-127, 127]. At 4 and 2
    bits that code is an eighth and a half of the range and is used: the scale is the smallest positive one under which
    neither extreme is clipped, max(-lo/8, hi/7) for int4. Scales stay positive because several runtimes refuse others.

    Args:
        low: Smallest value of each block, shape of the scale, finite.
        high: Largest value of each block, same shape. A block of zeros (a dead channel) gets scale 1.
        dtype: Element type; its zero point is the constant of numerics.md 5 (int8 0, uint8 128, int16 0, ...).
        granularity: How the tensor is cut; PerTensor for a scalar.
        storage: dtype of the scale.
    """
    negative = np.maximum(-np.asarray(low, dtype=np.float64), 0.0)
    positive = np.maximum(np.asarray(high, dtype=np.float64), 0.0)
    if not dtype.is_integer:
        limit = dtype.qmax
        scale = np.maximum(negative, positive) / limit
    elif dtype.bits >= 8:
        limit = float((1 << (dtype.bits - 1)) - 1)
        scale = np.maximum(negative, positive) / limit
    else:
        limit = float((1 << (dtype.bits - 1)) - 1)
        scale = np.maximum(negative / (limit + 1.0), positive / limit)
    scale = _guarded(scale, storage, limit)
    zero = np.full(scale.shape, dtype.symmetric_zero_point).astype(dtype.numpy)
    return QParams(dtype, scale, zero, granularity or PerTensor())

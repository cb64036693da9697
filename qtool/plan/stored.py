"""How weight-only mode stores a constant: its type, its blocks, the order of its elements, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.dtypes import QDType
from qtool.granularity import Granularity, PerAxis, PerBlock, PerTensor
from qtool.plan.plan import WeightPlan


class Layout(StrEnum):
    """Where the elements of a weight are in its codes, and how the operator gets them back."""

    DIRECT = "direct"  # codes of the weight's shape: DequantizeLinear -> operator
    FLAT = "flat"  # one row per output channel: DequantizeLinear -> Reshape -> operator
    TRANSPOSED = "transposed"  # columns first: DequantizeLinear -> Transpose -> operator
    ROWS = "rows"  # a table: Gather of codes (and of their scales) -> DequantizeLinear
    NBITS = "nbits"  # com.microsoft.MatMulNBits: one row of blocks per output channel
    NBITS_ROWS = "nbits rows"  # com.microsoft.GatherBlockQuantized


@dataclass(frozen=True)
class StoredWeight(WeightPlan):
    """A constant operand of a float operator that is stored quantized.

    Attributes:
        shape: Of the weight, as the operator sees it.
        dtype: Element type of its codes.
        scale_type: Type of its scales if it is not the weight's own.
        granularity: How the codes, in their layout, are cut.
        layout: Order of the codes.
        bytes_before: Of the weight.
        bytes_after: Of its codes, scales and zero points.
    """

    shape: tuple[int, ...] = ()
    dtype: QDType | None = None
    scale_type: QDType | None = None
    granularity: Granularity | None = None
    layout: Layout = Layout.DIRECT
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def has_zero_points(self) -> bool:
        """Whether zero points are stored: for integers, unless they are all 0 and would have to be gathered.

        A float format has none by its nature, and MatMulNBits takes the middle code where none are given.
        """
        assert self.dtype is not None, "Bug: a stored weight without a type"
        if self.layout in (Layout.ROWS, Layout.NBITS, Layout.NBITS_ROWS) and not isinstance(
            self.granularity, PerTensor
        ):
            return self.dtype.kind == "uint"
        return self.dtype.is_integer

    @property
    def has_one_scale_per_row(self) -> bool:
        """Whether each row of a matrix has one scale."""
        blocked = isinstance(self.granularity, PerBlock) and len(self.shape) == 2
        return blocked and self.granularity is not None and self.granularity.scale_shape(self.shape)[1] == 1

    def arranged(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A weight in the order of its codes."""
        if self.layout is Layout.FLAT:
            return array.reshape(array.shape[0], -1)
        if self.layout in (Layout.TRANSPOSED, Layout.NBITS):
            return np.ascontiguousarray(array.T)
        return array

    @property
    def arranged_shape(self) -> tuple[int, ...]:
        """The shape of a weight in the order of its codes."""
        if self.layout is Layout.FLAT:
            return (self.shape[0], int(np.prod(self.shape[1:])))
        return self.shape[::-1] if self.layout in (Layout.TRANSPOSED, Layout.NBITS) else self.shape

    def describe(self) -> str:
        """One clause for a table."""
        assert self.dtype is not None, "Bug: a stored weight without a type"
        if isinstance(self.granularity, PerBlock):
            where = f"blocks of {self.granularity.size}"
        else:
            where = "per channel" if isinstance(self.granularity, PerAxis) else "per tensor"
        scales = f", {self.scale_type.name} scales" if self.scale_type else ""
        return f"{self.dtype.name} {where}{scales}, {self.bytes_before} -> {self.bytes_after} bytes"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        assert self.dtype is not None, "Bug: a stored weight without a type"
        row = {"dtype": self.dtype.name, "granularity": repr(self.granularity), "layout": str(self.layout)}
        sizes = {"bytes_before": self.bytes_before, "bytes_after": self.bytes_after}
        quality = {} if self.sqnr_db is None else {"sqnr_db": self.sqnr_db if np.isfinite(self.sqnr_db) else None}
        return super().to_dict() | row | sizes | quality

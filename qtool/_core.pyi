"""Types of the compiled core; what the arguments mean stands in _core.pyx."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]

# ---------------------------------------------------------------------------------------------------- threads and ISA

def has_openmp() -> bool: ...
def isa_names() -> tuple[str, ...]: ...
def supported_isas() -> tuple[str, ...]: ...

_Row = tuple[str, str]

def isa_state() -> tuple[
    tuple[str, ...], tuple[str, ...], str, str, tuple[tuple[str, _Row, tuple[_Row, ...]], ...]
]: ...
def set_isa(name: str) -> str: ...

# ------------------------------------------------------------------------------------------------- elementwise kernels

# `x` is the elements (_Bytes: as bytes), `source` and `precision` number their types (_SOURCES of
# kernels/elementwise.py),
# `layout` is (cols, n_mid, b_mid, k0, k1, b_col)
def round_to(x: _Bytes, source: int, precision: int, y: _Floats) -> None: ...
def overlap(a: Array, b: Array) -> bool: ...

class Quantizer:
    def __init__(
        self,
        size: int,
        source: int,
        precision: int,
        layout: tuple[int, ...],
        bits: int,
        first: int,
        last: int,
        format: tuple[int, ...] | None,  # noqa: A002
    ) -> None: ...

def quantize_integer(
    how: Quantizer, x: Array, scale: _Floats, zero_point: Array | None, packed: bool, y: Array, n_threads: int
) -> None: ...
def quantize_float(
    how: Quantizer, x: Array, scale: _Floats, offset: _Floats, saturate: bool, packed: bool, y: Array, n_threads: int
) -> None: ...
def dequantize(
    x: Array,
    size: int,
    source: int,
    table: _Floats,
    scale: _Floats,
    zero_point: Array | None,
    layout: tuple[int, ...],
    result: int,
    stream: bool,
    y: Array,
    n_threads: int,
) -> None: ...
def pack(codes: _Bytes, bits: int, raw: _Bytes, n_threads: int) -> None: ...
def unpack(raw: _Bytes, bits: int, codes: _Bytes, n_threads: int) -> None: ...
def min_max(x: _Bytes, source: int, size: int, n_threads: int) -> tuple[int, int, int, int, float, float]: ...
def channel_blocks(outer: int) -> int: ...
def absmax(x: _Bytes, source: int, outer: int, inner: int, best: NDArray[np.int32], n_threads: int) -> None: ...
def abs_sum(x: _Bytes, source: int, outer: int, inner: int, total: NDArray[np.float64], n_threads: int) -> None: ...
def histogram(
    x: _Bytes,
    source: int,
    size: int,
    exponent: int,
    bits: int,
    counts: NDArray[np.int64],
    n_threads: int,
) -> int: ...
def observe(
    tasks: list[tuple[_Floats, int, int, int, int, NDArray[np.int32] | None, NDArray[np.int64] | None, int]], bits: int
) -> list[tuple[int, int, int, int, list[tuple[float, float]], int]]: ...

# ------------------------------------------------------------------------------------------------------ integer matmul

class PackedMatrices:
    def __init__(self, b: Array, is_signed: bool, n_threads: int) -> None: ...
    @property
    def items(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def is_signed(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def kernel_name(self) -> str: ...
    @property
    def current(self) -> bool: ...

def matmul(
    a: Array,
    b: PackedMatrices,
    a_item: Array,
    b_item: Array,
    a_signed: bool,
    a_zero: Array,
    b_zero: Array,
    out32: Array | None,
    out8: Array | None,
    a_scale: Array | None,
    b_scale: Array | None,
    y_scale: float,
    y_zero: int,
    y_signed: bool,
    literal: bool,
    n_threads: int,
) -> None: ...
def matmul_2d(
    a_array: Array,
    b_array: object,
    a_zero: Array | None,
    b_zero: Array | None,
    a_scale: Array | None,
    b_scale: Array | None,
    y_scale: Array | None,
    y_zero: Array | None,
    num_threads: int | None,
    threads: Callable[[int | None, int, int], int],
) -> Array | None: ...
def macs_per_ns() -> int: ...

# ------------------------------------------------------------------------------------------------------- convolution

class PackedWeights:
    def kernel(self) -> str: ...
    def is_current(self) -> bool: ...

def pack_conv(w: Array, groups: int, w_signed: bool, n_threads: int) -> PackedWeights: ...
def conv(
    x: Array,
    w: Array,
    packed: PackedWeights | None,
    groups: int,
    strides: tuple[int, ...],
    pads_begin: tuple[int, ...],
    dilations: tuple[int, ...],
    x_signed: bool,
    w_signed: bool,
    x_zero: int,
    w_zero: Array,
    bias: Array | None,
    out32: Array | None,
    out8: Array | None,
    x_scale: Array | None,
    w_scale: Array | None,
    y_scale: float,
    y_zero: int,
    y_signed: bool,
    literal: bool,
    n_threads: int,
) -> None: ...
def dynamic_quantize(x: Array, y: Array, n_threads: int) -> tuple[float, int]: ...

# ---------------------------------------------------------------------------------------------------- saturating pairs

def saturating(a: Array, b: Array, out: Array | None, counts: Array | None, n_threads: int) -> None: ...

# ------------------------------------------------------------------------------------------------------------ ceilings

def peak(name: str, seconds: float) -> float | None: ...

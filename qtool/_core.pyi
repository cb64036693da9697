from typing import Any

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]

# elementwise kernels: `x` is the bytes of the elements, `source` and `precision` number their types (kernels._SOURCES),
# `layout` is (cols, n_mid, b_mid, k0, k1, b_col)
def round_to(x: _Bytes, source: int, precision: int, y: _Floats) -> None: ...
def quantize_integer(
    x: _Bytes,
    source: int,
    precision: int,
    scale: _Floats,
    zero_point: npt.NDArray[np.int32],
    layout: tuple[int, ...],
    qmin: int,
    qmax: int,
    bits: int,
    y: npt.NDArray[Any],
    n_threads: int,
) -> None: ...
def quantize_float(
    x: _Bytes,
    source: int,
    precision: int,
    scale: _Floats,
    zero_point: _Floats,
    layout: tuple[int, ...],
    format: tuple[int, ...],  # noqa: A002
    saturate: bool,
    y: npt.NDArray[Any],
    n_threads: int,
) -> None: ...
def dequantize(
    x: _Bytes,
    source: int,
    table: _Floats,
    scale: _Floats,
    zero_point: _Floats,
    layout: tuple[int, ...],
    y: npt.NDArray[Any],
    n_threads: int,
) -> None: ...
def dequantize_half(
    x: _Bytes,
    source: int,
    table: _Floats,
    scale: _Floats,
    zero_point: _Floats,
    layout: tuple[int, ...],
    brain: bool,
    y: npt.NDArray[Any],
    n_threads: int,
) -> None: ...
def pack(codes: _Bytes, bits: int, raw: _Bytes, n_threads: int) -> None: ...
def unpack(raw: _Bytes, bits: int, codes: _Bytes, n_threads: int) -> None: ...
def task_count(size: int) -> int: ...
def min_max(
    x: _Bytes,
    source: int,
    size: int,
    counts: npt.NDArray[np.int64],
    low: _Floats,
    high: _Floats,
    n_threads: int,
) -> None: ...
def absmax(x: _Bytes, source: int, outer: int, inner: int, best: npt.NDArray[np.int32], n_threads: int) -> None: ...
def histogram(
    x: _Bytes,
    source: int,
    size: int,
    exponent: int,
    bits: int,
    counts: npt.NDArray[np.int64],
    n_threads: int,
) -> int: ...

"""Types of the compiled core; what the arguments mean stands in _core.pyx."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

# ---------------------------------------------------------------------------------------------------- threads and ISA

def has_openmp() -> bool: ...
def isa_names() -> tuple[str, ...]: ...
def supported_isas() -> tuple[str, ...]: ...
def isa_state() -> tuple[tuple[str, ...], tuple[str, ...], str, tuple[str, ...], str, str]: ...
def set_isa(name: str) -> str: ...

# ------------------------------------------------------------------------------------------------- elementwise kernels

# ------------------------------------------------------------------------------------------------------ integer matmul

def matmul(
    a: Array,
    b: Array,
    a_item: Array,
    b_item: Array,
    a_signed: bool,
    b_signed: bool,
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
def conv(
    x: Array,
    w: Array,
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

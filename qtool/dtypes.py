"""One row per element type: bits, range, storage, packing, and the first opset and IR version that has it.

Nothing else in qtool knows these numbers. Opset floors are those of ``DequantizeLinear`` in the ONNX operator history
(numerics: QuantizeLinear gains types in 10, 19, 21, 23, 24, 25 and 28). To add a type, add a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from qtool.errors import ConfigError

Kind = Literal["int", "uint", "float", "exponent"]


@dataclass(frozen=True)
class FloatFormat:
    """Encoding of a small binary float: sign, exponent, mantissa from high to low; magnitudes ascend with the code.

    Attributes:
        mantissa: Stored mantissa bits.
        bias: Exponent bias; exponent field 0 is subnormal.
        max_code: Magnitude code of the largest finite value. The code after it, read as a number, is where overflow
            begins to be told by rounding: a value is out of range if it rounds there.
        overflow: Code of an overflow without saturation (Inf, NaN, or ``max_code`` where the type has neither).
        nan: Code that a NaN becomes.
        signed_nan: Whether a NaN (or an overflow that is one) carries a sign.
        negative_zero: Whether the type has a -0; the fnuz types spend that code on their only NaN.
    """

    mantissa: int
    bias: int
    max_code: int
    overflow: int
    nan: int
    signed_nan: bool = True
    negative_zero: bool = True

    def magnitude(self, code: int) -> float:
        """The value of a code without its sign bit."""
        exponent, mantissa = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        if exponent == 0:
            return float(mantissa * 2.0 ** (1 - self.bias - self.mantissa))
        return float((1 + mantissa * 2.0**-self.mantissa) * 2.0 ** (exponent - self.bias))


# The two half-precision types: not quantized types, but divisions and products are rounded to them.
FLOAT16 = FloatFormat(mantissa=10, bias=15, max_code=0x7BFF, overflow=0x7C00, nan=0x7E00)
BFLOAT16 = FloatFormat(mantissa=7, bias=127, max_code=0x7F7F, overflow=0x7F80, nan=0x7FC0)


@dataclass(frozen=True)
class QDType:
    """An element type that a tensor can be quantized to.

    Attributes:
        name: ONNX spelling in lower case (``uint8``, ``float8e4m3fn``), unique.
        bits: Width of one element.
        kind: ``int`` (two's complement), ``uint``, ``float`` (a minifloat), or ``exponent`` (e8m0, a scale only).
        qmin: Smallest finite value.
        qmax: Largest finite value.
        onnx: ``TensorProto.DataType`` number.
        storage: Name of the numpy type (``ml_dtypes`` where numpy has none); one element per array item.
        min_opset: First opset of ai.onnx whose DequantizeLinear takes the type, per tensor.
        min_ir: IR version that goes with it.
        saturates_to_inf: Whether an overflow without saturation is Inf (e5m2); otherwise it is NaN.
        format: Encoding of a ``float`` kind; None for the others.
    """

    name: str
    bits: int
    kind: Kind
    qmin: float
    qmax: float
    onnx: int
    storage: str
    min_opset: int
    min_ir: int
    saturates_to_inf: bool = False
    format: FloatFormat | None = None

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of unpacked elements."""
        import ml_dtypes

        scalar: type[Any] = getattr(np, self.storage, None) or getattr(ml_dtypes, self.storage)
        return np.dtype(scalar)

    @property
    def is_integer(self) -> bool:
        """Whether the type is a signed or unsigned integer."""
        return self.kind in ("int", "uint")

    @property
    def symmetric_zero_point(self) -> int:
        """The zero point of a symmetric range: a constant of the type, never derived through float arithmetic."""
        return 1 << (self.bits - 1) if self.kind == "uint" else 0

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` packed elements, as in ``TensorProto.raw_data``."""
        return (elements * self.bits + 7) // 8

    def floor(self, *, per_axis: bool = False, blocked: bool = False) -> tuple[int, int]:
        """The first (opset, IR version) in which the type may be used at a granularity."""
        opset, ir = self.min_opset, self.min_ir
        if per_axis:
            opset, ir = max(opset, PER_AXIS_FLOOR[0]), max(ir, PER_AXIS_FLOOR[1])
        if blocked:
            opset, ir = max(opset, BLOCKED_FLOOR[0]), max(ir, BLOCKED_FLOOR[1])
        return opset, ir


PER_AXIS_FLOOR = (13, 7)
BLOCKED_FLOOR = (21, 10)
HALF_SCALE_FLOOR = (19, 9)  # scales of float16 and bfloat16
PRECISION_FLOOR = (23, 11)  # the `precision` attribute, and a scale type that differs from x

_E4M3FN = FloatFormat(3, 7, 0x7E, overflow=0x7F, nan=0x7F)
_E4M3FNUZ = FloatFormat(3, 8, 0x7F, overflow=0x80, nan=0x80, signed_nan=False, negative_zero=False)
_E5M2 = FloatFormat(2, 15, 0x7B, overflow=0x7C, nan=0x7E)
_E5M2FNUZ = FloatFormat(2, 16, 0x7F, overflow=0x80, nan=0x80, signed_nan=False, negative_zero=False)
# No NaN and no Inf. A NaN becomes -0: so say ONNX's page on 6-bit floats and the Cast cases that the onnx package ships
# for float4e2m1 (the older page on 4-bit floats said 6). Its sign is ignored.
_E2M1 = FloatFormat(1, 1, 0x07, overflow=0x07, nan=0x08, signed_nan=False)
_E2M3 = FloatFormat(3, 1, 0x1F, overflow=0x1F, nan=0x20, signed_nan=False)
_E3M2 = FloatFormat(2, 3, 0x1F, overflow=0x1F, nan=0x20, signed_nan=False)

_ROWS = (
    QDType("int8", 8, "int", -128, 127, 3, "int8", 10, 5),
    QDType("uint8", 8, "uint", 0, 255, 2, "uint8", 10, 5),
    QDType("int16", 16, "int", -32768, 32767, 5, "int16", 21, 10),
    QDType("uint16", 16, "uint", 0, 65535, 4, "uint16", 21, 10),
    QDType("int4", 4, "int", -8, 7, 22, "int4", 21, 10),
    QDType("uint4", 4, "uint", 0, 15, 21, "uint4", 21, 10),
    QDType("int2", 2, "int", -2, 1, 26, "int2", 25, 13),
    QDType("uint2", 2, "uint", 0, 3, 25, "uint2", 25, 13),
    QDType("float8e4m3fn", 8, "float", -448, 448, 17, "float8_e4m3fn", 19, 9, format=_E4M3FN),
    QDType("float8e4m3fnuz", 8, "float", -240, 240, 18, "float8_e4m3fnuz", 19, 9, format=_E4M3FNUZ),
    QDType("float8e5m2", 8, "float", -57344, 57344, 19, "float8_e5m2", 19, 9, saturates_to_inf=True, format=_E5M2),
    QDType("float8e5m2fnuz", 8, "float", -57344, 57344, 20, "float8_e5m2fnuz", 19, 9, format=_E5M2FNUZ),
    QDType("float4e2m1", 4, "float", -6, 6, 23, "float4_e2m1fn", 23, 11, format=_E2M1),
    QDType("float6e2m3", 6, "float", -7.5, 7.5, 27, "float6_e2m3fn", 28, 14, format=_E2M3),
    QDType("float6e3m2", 6, "float", -28, 28, 28, "float6_e3m2fn", 28, 14, format=_E3M2),
    # A scale type: 2^(code-127), code 255 is NaN, no zero, no sign.
    QDType("float8e8m0", 8, "exponent", 2.0**-127, 2.0**127, 24, "float8_e8m0fnu", 24, 12),
)

QDTYPES: dict[str, QDType] = {row.name: row for row in _ROWS}
BY_ONNX: dict[int, QDType] = {row.onnx: row for row in _ROWS}
BY_STORAGE: dict[str, QDType] = {row.storage: row for row in _ROWS}


def qdtype(name: str) -> QDType:
    """Look a type up by its ONNX name.

    Raises:
        ConfigError: If there is no such type; the message lists the valid names.
    """
    try:
        return QDTYPES[name]
    except KeyError:
        raise ConfigError(f"Unknown element type '{name}'; expected one of {', '.join(QDTYPES)}.") from None

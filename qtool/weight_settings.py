"""What weight-only mode can be asked for, and what holds where nothing is said: element types, blocks, scales."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from qtool.dtypes import qdtype
from qtool.errors import ConfigError

WEIGHT_ONLY_DTYPES = (
    "int8",
    "uint8",
    "int4",
    "uint4",
    "int2",
    "uint2",
    "float8e4m3fn",
    "float8e5m2",
    "float4e2m1",
)
SCALE_TYPES = ("float8e8m0",)
DEFAULT_BLOCK = 32
# com.microsoft.MatMulNBits has these; DequantizeLinear takes any block size
NBITS_DTYPES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
NBITS_BLOCKS = (16, 32, 64, 128, 256)
# settings that only mean something where activations are quantized
_OF_ACTIVATIONS = {
    "format": "--format",
    "activations": "--activations",
    "symmetric_activations": "--symmetric",
    "method": "--method",
    "tensor_methods": "--method",
    "dedicated_qdq": "--dedicated-qdq",
}


class Settings(Protocol):
    """The part of a QuantConfig that is looked at here."""

    @property
    def weights(self) -> str:
        """Element type of weights."""

    @property
    def per_channel(self) -> bool:
        """Whether scales are per channel (or finer), not per tensor."""

    @property
    def weight_only(self) -> bool:
        """Whether activations stay float."""

    @property
    def block(self) -> int | None:
        """Elements per scale, if that was said."""

    @property
    def scale_type(self) -> str | None:
        """Type of the scales, if it is not the weight's own."""

    @property
    def matmul_nbits(self) -> bool:
        """Whether products become ``com.microsoft.MatMulNBits``."""


def effective_block(settings: Settings) -> int | None:
    """Elements per scale along the summed axis; None for one scale per channel, or per tensor.

    Types below 8 bits, e8m0 scales and MatMulNBits are always blocked.
    """
    if settings.block is not None:
        return settings.block
    always = qdtype(settings.weights).bits < 8 or settings.scale_type is not None or settings.matmul_nbits
    return DEFAULT_BLOCK if always else None


def refuse_activation_settings(given: Collection[str]) -> None:
    """Refuse settings that mean nothing where activations stay float.

    Args:
        given: Names of the settings that somebody asked for.

    Raises:
        ConfigError: For the first of them.
    """
    for name, option in _OF_ACTIVATIONS.items():
        if name in given:
            raise ConfigError(
                f"Option {option} is about activations, which weight-only mode leaves in float; expected it without "
                "--weight-only, or not at all."
            )


def check_weight_only(settings: Settings) -> None:
    """Refuse what cannot be carried out.

    Args:
        settings: A config, whose ``weights`` are legal.

    Raises:
        ConfigError: For an illegal value or combination; the message names what is expected.
    """
    if not settings.weight_only:
        _refuse_without_the_mode(settings)
        return
    _check_block(settings)
    if settings.scale_type is not None:
        _check_scale_type(settings)
    if settings.matmul_nbits:
        _check_nbits(settings)


def _refuse_without_the_mode(settings: Settings) -> None:
    given = {"--block": settings.block, "--scale-type": settings.scale_type, "--matmul-nbits": settings.matmul_nbits}
    for option, value in given.items():
        if value is not None and value is not False:
            raise ConfigError(
                f"Option {option} belongs to weight-only mode; expected --weight-only with it.",
                hint="Add --weight-only, which needs no calibration data.",
            )


def _check_block(settings: Settings) -> None:
    block = settings.block
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ConfigError(f"Option 'block' is {block!r}; expected a positive number of elements.")
    if settings.per_channel:
        return
    if block is not None:
        raise ConfigError(f"A block of {block} and one scale per tensor are asked for; expected one of them.")
    if effective_block(settings) is not None:
        raise ConfigError(
            f"One scale per tensor is asked for, but weights of {_described(settings)} come in blocks; expected int8, "
            "uint8, float8e4m3fn or float8e5m2 weights."
        )


def _check_scale_type(settings: Settings) -> None:
    if settings.scale_type not in SCALE_TYPES:
        raise ConfigError(f"Option 'scale_type' is {settings.scale_type!r}; expected one of {', '.join(SCALE_TYPES)}.")
    if qdtype(settings.weights).kind != "float":
        floats = ", ".join(w for w in WEIGHT_ONLY_DTYPES if qdtype(w).kind == "float")
        raise ConfigError(
            f"Scales of {settings.scale_type} do not go with {settings.weights} weights; expected one of {floats}."
        )


def _check_nbits(settings: Settings) -> None:
    if settings.weights not in NBITS_DTYPES:
        raise ConfigError(
            f"MatMulNBits has no {settings.weights} weights; expected one of {', '.join(NBITS_DTYPES)}.",
            hint="Leave out --matmul-nbits: DequantizeLinear takes the type.",
        )
    block = effective_block(settings)
    if block not in NBITS_BLOCKS:
        raise ConfigError(
            f"MatMulNBits has no blocks of {block}; expected one of {', '.join(map(str, NBITS_BLOCKS))}.",
            hint="Leave out --matmul-nbits: DequantizeLinear takes any block size.",
        )


def _described(settings: Settings) -> str:
    return settings.weights if settings.scale_type is None else f"{settings.weights} with {settings.scale_type} scales"

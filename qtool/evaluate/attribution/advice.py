"""From an operator's parts to their cause, and from the cause to an option that removes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qtool import kernels
from qtool.calibrate.methods import METHODS
from qtool.calibrate.methods.quality import quality
from qtool.dtypes import QDTYPES
from qtool.evaluate.attribution.command import literal
from qtool.evaluate.attribution.graph import Array, Graph
from qtool.evaluate.attribution.operator import FloatPart
from qtool.evaluate.attribution.report import Cause
from qtool.evaluate.attribution.tally import InputTally, UnitTally
from qtool.evaluate.attribution.units import StoredWeight, Unit
from qtool.signal import sqnr_db

Option: TypeAlias = tuple[str, str | None]

WORTH_SHARE = 0.05
"""Share of the noise from which an operator gets a suggestion, ..."""
WORTH_DB = 25.0
"""... or decibels of its own below which it does: 30 to 45 are usual at 8 bits."""
_SUSPECT_DB = 25.0
_BETTER_DB = 10.0
_AS_GOOD_DB = 1.0
# operators whose range follows from what they compute, not from data
_FIXED = ("Softmax", "Sigmoid", "Tanh", "HardSigmoid", "Clip")


@dataclass(frozen=True)
class Advice:
    """Why an operator is noisy and what to do about it.

    Attributes:
        cause: Of its own noise.
        options: What to add to the command that made the file; several that only help together. Empty: making it
            again with qtool is enough.
        why: One clause.
    """

    cause: Cause
    options: tuple[Option, ...]
    why: str


def cause_of(tally: UnitTally) -> Cause:
    """The largest part of a unit's own noise."""
    parts = {
        Cause.WEIGHT: tally.energies["weight"],
        Cause.CLIPPING: tally.energies["clip"],
        Cause.ROUNDING: tally.energies["round"],
    }
    broken = next((cause for cause, value in parts.items() if math.isnan(value)), None)
    if broken is not None:
        return broken
    cause = max(parts, key=lambda one: parts[one])
    return cause if parts[cause] > 0.0 else Cause.NONE


def advise(
    tally: UnitTally,
    part: FloatPart,
    reference: Graph,
    quantized: Graph,
    node: str,
    *,
    saturation: bool = True,
    target: str | None = None,
) -> Advice:
    """What to do about one unit.

    Args:
        tally: Its sums.
        part: What it stands for in the float model.
        reference: The float model.
        quantized: The quantized model.
        node: The name of its node for ``--exclude``.
        saturation: Whether sums that saturate without VNNI count.
        target: What the quantized model was made for, if it says so.
    """
    cause = cause_of(tally)
    exclude: tuple[Option, ...] = (("--exclude", literal(node)),)
    if saturation and tally.saturation_dominates:
        why = f"{tally.saturated} sums of two products in {node} leave int16 on a processor without VNNI"
        # a file for such processors was made with samples in which these do not: 7 bits for it are not to be had so
        options = exclude if target == "avx2" else (("--target", "avx2"),)
        return Advice(Cause.SATURATION, options, why)
    if cause is Cause.NONE:
        return Advice(cause, (), "it adds no noise")
    if cause is Cause.WEIGHT and _is_wrong_axis(tally, part, reference, quantized):
        return Advice(Cause.AXIS, (), f"the weight of {node} has its scales along the wrong axis")
    if cause is Cause.CLIPPING:
        worst = max([*tally.inputs, *_output(tally)], key=lambda one: one.lost)
        method = better_method(worst, reference)
        if method is not None:
            option = ("--method", f"{literal(worst.operand.tensor)}={method}")
            return Advice(
                cause, (option,), f"the range of {worst.operand.tensor} cuts {worst.clipped:.2%} of its values"
            )
        return Advice(cause, exclude, f"{node} stays float: no other range of its input is better")
    what = {Cause.WEIGHT: "its stored weight", Cause.ROUNDING: "the rounding of its input"}[cause]
    return Advice(cause, exclude, f"{node} stays float: {what} is most of what it adds")


def _output(tally: UnitTally) -> Sequence[InputTally]:
    return [] if tally.output is None else [tally.output]


def better_method(tally: InputTally, reference: Graph) -> str | None:
    """The range method that serves the observed values best; None if it is no better than the range that there is."""
    params = tally.operand.params
    maker = reference.producer(tally.operand.tensor)
    if params is None or (maker is not None and maker.op_type in _FIXED):
        return None
    dtype = next((d for d in QDTYPES.values() if d.numpy == params.zero.dtype and d.is_integer), None)
    if dtype is None or not tally.statistics.finite:
        return None
    low, high = dtype.qmin, dtype.qmax
    symmetric = int(params.zero) == (int(low) + int(high) + 1) // 2

    def decibels(bottom: float, top: float) -> float:
        return quality(tally.statistics, min(bottom, 0.0), max(top, 0.0), dtype, symmetric=symmetric).sqnr_db

    found = {
        name: decibels(*METHODS[name].range_of(tally.statistics, dtype, symmetric=symmetric, parameter=None))
        for name in ("minmax", "mse")
    }
    best = max(found.values())
    if best < decibels(params.low, params.high) + _AS_GOOD_DB:
        return None
    return "minmax" if found["minmax"] >= best - _AS_GOOD_DB else "mse"


def _is_wrong_axis(tally: UnitTally, part: FloatPart, reference: Graph, quantized: Graph) -> bool:
    """Whether the stored codes are the weight after all, if the scales are laid along another axis."""
    weight = tally.unit.weight
    weight_db = 10.0 * math.log10(tally.signal / tally.energies["weight"]) if tally.signal else math.inf
    if weight is None or weight.axis is None or weight.block or weight_db > _SUSPECT_DB:
        return False
    codes = quantized.array(weight.codes)
    if codes.ndim < 2 or (weight.zero is not None and np.any(weight.zero)):
        return False
    exact = float_weight(tally.unit, weight, codes.shape, part, reference)
    if exact is None:
        return False
    as_read = _fit(codes, weight.scale, weight.axis, exact)
    others = [a for a in range(codes.ndim) if a != weight.axis and codes.shape[a] == weight.scale.size]
    return any(_fit(codes, weight.scale, axis, exact) > as_read + _BETTER_DB for axis in others)


def _fit(codes: Array, scale: Array, axis: int, exact: Array) -> float:
    return sqnr_db(exact, kernels.dequantize(codes, scale, axis=axis))


def float_weight(
    unit: Unit, weight: StoredWeight, shape: tuple[int, ...], part: FloatPart, reference: Graph
) -> Array | None:
    """The constant of the float model that a stored weight is made of, laid out like it."""
    node = part.heaviest
    if weight.index >= len(node.input) or not reference.is_constant(node.input[weight.index]):
        return None
    exact = reference.array(node.input[weight.index])
    if unit.op_type != node.op_type and exact.ndim == 2:
        return exact.T if exact.T.shape == shape and exact.shape != shape else exact if exact.shape == shape else None
    return exact if exact.shape == shape else None

"""What attribution and sensitivity find out: plain frozen data, and its JSON form.

For a quantized operator l with float input x, quantized input x~, float weights W and stored weights W~:

    own       = f_l(W~; Q(x)) - f_l(W; x)       what the operator adds by itself
    inherited = f_l(W; x~) - f_l(W; x)          what arrives from the operators before it
    total     = f_l(W~; x~) - f_l(W; x)         what leaves it

and own is the sum of three parts, with c(x) the input clamped to what rounding alone can represent:

    weight   = f_l(W~; x) - f_l(W; x)
    clipping = f_l(W~; c(x)) - f_l(W~; x)
    rounding = f_l(W~; Q(x)) - f_l(W~; c(x))

Decibels are 10*log10(sum f_l(W; x)^2 / sum part^2): ``inf`` where a part is zero. ``None`` stands for what has no
meaning for an operator (the weight part of one without weights), or was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qtool.evaluate.json_form import Json

HISTOGRAM_BINS = 64


class Cause(StrEnum):
    """What most of an operator's own noise is."""

    WEIGHT = "weight"  # stored weights
    AXIS = "axis"  # weights with scales along the wrong axis
    CLIPPING = "clipping"  # input values outside the chosen range
    ROUNDING = "rounding"  # input values between two codes
    SATURATION = "saturation"  # sums of two products that leave int16, on a CPU without VNNI
    NONE = "none"  # no noise of its own


@dataclass(frozen=True)
class InputHistogram:
    """The float values of one activation that a quantized operator reads, and the range that was chosen for it.

    Attributes:
        tensor: Its name in the float model.
        low: Lower edge of the first bin.
        high: Upper edge of the last bin; above ``low``.
        counts: Values in each of at most 64 bins of equal width; all finite values are in one of them.
        range_low: The lowest value that the codes represent; None if the running model chooses the range.
        range_high: The highest.
        scale: Step between two codes; None as above.
        clipped: Share of the values that lie more than half a step outside the range.
        used: Number of codes that occur.
        codes: Number of codes that there are.
    """

    tensor: str
    low: float
    high: float
    counts: tuple[int, ...]
    range_low: float | None = None
    range_high: float | None = None
    scale: float | None = None
    clipped: float = 0.0
    used: int = 0
    codes: int = 0

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see ``qtool.evaluate.report``."""
        return {
            "tensor": self.tensor,
            "low": _number(self.low),
            "high": _number(self.high),
            "counts": list(self.counts),
            "range_low": _number(self.range_low),
            "range_high": _number(self.range_high),
            "scale": _number(self.scale),
            "clipped": _number(self.clipped),
            "used": self.used,
            "codes": self.codes,
        }


@dataclass(frozen=True)
class LayerReport:
    """One quantized operator with the nodes that it absorbed.

    Attributes:
        node: Name of the node, which ``--exclude`` takes.
        op_type: Its operator in the float model.
        output: Name of the float tensor that it computes.
        own_db: Decibels of the output against what the operator adds by itself.
        weight_db: The part of the stored weights; None for an operator without.
        clip_db: The part of input values outside the range; None for an input that is not quantized.
        round_db: The part of rounding; None as above.
        inherited_db: What arrives.
        total_db: What leaves.
        share: Share of the noise at the model's outputs that is this operator's own, 0 to 1.
        share_measured: Whether the share was measured by running the float model with the operator's own error;
            otherwise it is estimated from those that were.
        clipped: Largest share of clipped values over the quantized inputs; None if there are none.
        levels_used: Codes that occur, of the input with the least; None as above.
        levels: How many codes that input has.
        weight: How the weight is stored, for people: ``int8 per channel (axis 0)``.
        saturated: Sums of two products that leave int16 on a CPU without VNNI; None if that cannot happen, or was not
            looked for.
        saturation_db: Decibels of the output against what those change.
        own_without_vnni_db: Decibels of the output against what the operator adds by itself there: ``own`` and those.
        cause: What most of the own noise is.
        suggestion: The flag of ``qtool quantize`` that helps most, if any is needed.
        histograms: Of the quantized inputs.
    """

    node: str
    op_type: str
    output: str
    own_db: float | None = None
    weight_db: float | None = None
    clip_db: float | None = None
    round_db: float | None = None
    inherited_db: float | None = None
    total_db: float | None = None
    share: float | None = None
    share_measured: bool = False
    clipped: float | None = None
    levels_used: int | None = None
    levels: int | None = None
    weight: str | None = None
    saturated: int | None = None
    saturation_db: float | None = None
    own_without_vnni_db: float | None = None
    cause: Cause = Cause.NONE
    suggestion: str | None = None
    histograms: tuple[InputHistogram, ...] = ()

    @property
    def own_there_db(self) -> float | None:
        """Own decibels on a CPU without VNNI, which are those here where nothing saturates."""
        return self.own_db if self.own_without_vnni_db is None else self.own_without_vnni_db

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see ``qtool.evaluate.report``."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "output": self.output,
            "own_db": _number(self.own_db),
            "weight_db": _number(self.weight_db),
            "clip_db": _number(self.clip_db),
            "round_db": _number(self.round_db),
            "inherited_db": _number(self.inherited_db),
            "total_db": _number(self.total_db),
            "share": _number(self.share),
            "share_measured": self.share_measured,
            "clipped": _number(self.clipped),
            "levels_used": self.levels_used,
            "levels": self.levels,
            "weight": self.weight,
            "saturated": self.saturated,
            "saturation_db": _number(self.saturation_db),
            "own_without_vnni_db": _number(self.own_without_vnni_db),
            "cause": str(self.cause),
            "suggestion": self.suggestion,
            "histograms": [histogram.to_dict() for histogram in self.histograms],
        }


@dataclass(frozen=True)
class Command:
    """Something to type next.

    Attributes:
        text: A line for a POSIX shell.
        why: What it is expected to do, one clause.
    """

    text: str
    why: str

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON."""
        return {"text": self.text, "why": self.why}


@dataclass(frozen=True)
class Attribution:
    """All quantized operators of a model, the one that is to blame first.

    Attributes:
        layers: Ranked by :data:`RANKINGS` ``["share"]``.
        samples: Samples that were looked at.
        commands: What to type next, the best first; empty if nothing is worth it.
        left_out: (node, reason) of quantized operators that no row is about.
        notes: What the reader should know, one line each.
        saturation_loss_db: Decibels that the outputs are predicted to lose on a CPU without VNNI, beside what they
            have here; None if no sum saturates.
        without_vnni: Whether shares, ranks and causes are as on such a CPU.
    """

    layers: tuple[LayerReport, ...]
    samples: int
    commands: tuple[Command, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    saturation_loss_db: float | None = None
    without_vnni: bool = False

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see ``qtool.evaluate.report``."""
        return {
            "samples": self.samples,
            "saturation_loss_db": _number(self.saturation_loss_db),
            "without_vnni": self.without_vnni,
            "layers": [layer.to_dict() for layer in self.layers],
            "commands": [command.to_dict() for command in self.commands],
            "left_out": [{"node": node, "reason": reason} for node, reason in self.left_out],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class UnitSensitivity:
    """What returning one quantized operator to float gains.

    Attributes:
        node: Name of the node, which ``--exclude`` takes.
        op_type: Its operator in the float model.
        sqnr_db: Decibels of the outputs with this operator alone in float.
        gain_db: The same minus that of the whole quantized model; negative if it gets worse.
    """

    node: str
    op_type: str
    sqnr_db: float
    gain_db: float

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see ``qtool.evaluate.report``."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "sqnr_db": _number(self.sqnr_db),
            "gain_db": _number(self.gain_db),
        }


@dataclass(frozen=True)
class Sensitivity:
    """All quantized operators of a model, the one that gains most first.

    Attributes:
        units: By gain.
        samples: Samples that were run.
        sqnr_db: Decibels of the outputs of the quantized model: mean noise of all outputs, each against its signal.
        commands: What to type next.
        left_out: (node, reason) of quantized operators that no row is about.
        notes: What the reader should know, one line each.
    """

    units: tuple[UnitSensitivity, ...]
    samples: int
    sqnr_db: float
    commands: tuple[Command, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON; see ``qtool.evaluate.report``."""
        return {
            "samples": self.samples,
            "sqnr_db": _number(self.sqnr_db),
            "units": [unit.to_dict() for unit in self.units],
            "commands": [command.to_dict() for command in self.commands],
            "left_out": [{"node": node, "reason": reason} for node, reason in self.left_out],
            "notes": list(self.notes),
        }


def _least(value: float | None) -> float:
    """Sort key of decibels: what is broken first, what has no value last."""
    return math.inf if value is None else -math.inf if math.isnan(value) else value


def _most(value: float | None) -> float:
    return math.inf if value is None else -math.inf if math.isnan(value) else -value


RANKINGS: Mapping[str, Callable[[LayerReport], tuple[float, ...]]] = {
    "share": lambda layer: (_most(layer.share), _least(layer.own_db)),
    "own": lambda layer: (_least(layer.own_db),),
    "inherited": lambda layer: (_least(layer.inherited_db),),
    "total": lambda layer: (_least(layer.total_db),),
    "clipped": lambda layer: (_most(layer.clipped), _least(layer.own_db)),
}
"""Name -> sort key of a layer: the worst is the least."""


def ranked(layers: Iterable[LayerReport], by: str = "share") -> tuple[LayerReport, ...]:
    """Layers with the worst first; equal ones keep their order."""
    return tuple(sorted(layers, key=RANKINGS[by]))


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(float(value))

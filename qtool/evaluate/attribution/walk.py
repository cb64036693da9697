"""Both models side by side, segment by segment: every unit gets its arrays of a batch, and they are dropped behind it.

Memory is that of one batch and of the few segments that the two models are apart, whatever the number of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qtool.calibrate.segments import SegmentedModel
from qtool.evaluate.attribution.graph import Array
from qtool.evaluate.attribution.units import Unit

OBSERVED = ("float32", "float16", "uint8", "int8", "uint16", "int16")


@dataclass(frozen=True)
class Arrays:
    """What one unit reads and writes in one batch.

    Attributes:
        expected: Tensor of the float model -> its value there: operands and output.
        found: Value of the quantized model -> its value there: sources of the operands and of the output.
    """

    expected: Mapping[str, Array]
    found: Mapping[str, Array]


def needs(unit: Unit) -> tuple[set[str], set[str]]:
    """Names that a unit needs of the float model and of the quantized one."""
    return (
        {unit.output, *(operand.tensor for operand in unit.operands)},
        {unit.source, *(operand.source for operand in unit.operands)},
    )


def walk(
    reference: SegmentedModel, candidate: SegmentedModel, units: Sequence[Unit], feeds: Mapping[str, Array]
) -> Iterator[tuple[Unit, Arrays]]:
    """Run a batch through both models.

    Args:
        reference: The float model, with all that :func:`needs` names among its wanted tensors.
        candidate: The quantized model, likewise.
        units: In an order in which the quantized model computes them.
        feeds: The batch.
    """
    sides = Side(reference, feeds), Side(candidate, feeds)
    for unit in units:
        for side, names in zip(sides, needs(unit), strict=True):
            side.expect(names)
    for unit in units:
        expected, found = (side.take(names) for side, names in zip(sides, needs(unit), strict=True))
        yield unit, Arrays(expected, found)


class Side:
    """One model on one batch: arrays are computed when they are asked for, and dropped after their last use.

    Args:
        model: The model.
        feeds: The batch.
    """

    def __init__(self, model: SegmentedModel, feeds: Mapping[str, Array]) -> None:
        self._steps = model.steps(feeds)
        self._held: dict[str, Array] = {}
        self._uses: Counter[str] = Counter()

    def expect(self, names: set[str]) -> None:
        """Say that these will be asked for once more."""
        self._uses.update(names)

    def take(self, names: set[str]) -> dict[str, Array]:
        """Run as far as needed; name -> array."""
        while not names <= self._held.keys():
            arrays, _ = next(self._steps)
            self._held |= {name: array for name, array in arrays.items() if self._uses[name]}
        taken = {name: self._held[name] for name in names}
        for name in names:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._held[name]
        return taken

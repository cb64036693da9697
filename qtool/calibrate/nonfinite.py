"""Where NaN and infinities come from, and what is said of those that are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.calibrate.samples import Samples
from qtool.calibrate.segments import SegmentedModel, SourceGraph
from qtool.errors import DataError

if TYPE_CHECKING:
    from qtool.calibrate.statistics import Statistics

Array: TypeAlias = npt.NDArray[Any]
Trouble: TypeAlias = tuple[int, int]  # NaNs, infinities

_NAMED = 5
_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_HINT = (
    "Look for samples that the model was not made for; a range cannot be taken from them. --on-nan skip leaves such "
    "values out and says how many."
)


def refuse(
    source: SourceGraph, samples: Samples, start: int, bad: Mapping[str, Trouble], allow_inf: Collection[str]
) -> NoReturn:
    """Say which sample and which input or node brought NaN or infinities into an observed tensor.

    The samples are run again one at a time from the batch in which they were seen; then the first bad one once more
    with every tensor that leads to the observed one in view, a few at a time, up to the first that is not finite.

    Args:
        source: The model.
        samples: All samples.
        start: The first sample of that batch.
        bad: What was seen in it: tensor -> (NaNs, infinities).
        allow_inf: Tensors whose infinities are expected.

    Raises:
        DataError: Always.
    """
    run = SegmentedModel(source, list(bad))
    for rows, feeds in samples.slice(start).counted_batches(None):
        found = {name: trouble for name, trouble in _troubles(run, feeds) if trouble[0] or name not in allow_inf}
        found = {name: trouble for name, trouble in found.items() if any(trouble)}
        if found:
            bad = found
            break
        start += rows
    name, trouble = next(iter(bad.items()))
    infinities = name not in allow_inf
    subject, trouble = _origin(source, name, feeds, trouble, infinities=infinities)
    where = f"Sample {start}" if rows == 1 else f"Samples {start} to {start + rows - 1}"
    raise DataError(f"{where}: {subject} {_counted(trouble, infinities=infinities)}; expected finite ones.", hint=_HINT)


def skipped_notes(statistics: Statistics) -> list[str]:
    """A sentence for tensors from which NaNs were left out, and for those of which nothing was left."""
    some = {name: one for name, one in statistics.items() if one.nan}
    texts = [f"{one.nan} of {one.count} in '{name}'" for name, one in list(some.items())[:_NAMED]]
    if not texts:
        return []
    if len(some) > _NAMED:
        texts.append(f"and more in {len(some) - _NAMED} other tensors")
    return [f"NaN values were left out: {', '.join(texts)}."]


def _origin(
    source: SourceGraph, name: str, feeds: Mapping[str, Array], trouble: Trouble, *, infinities: bool
) -> tuple[str, Trouble]:
    """The input or the node that brings it in, as the subject of a sentence, and what it brings."""
    for given, array in feeds.items():
        seen = _trouble(array)
        if seen[0] or (infinities and seen[1]):
            return f"input '{given}' holds", seen
    producers = {output: node for node in source.proto.graph.node for output in node.output if output}
    names = SegmentedModel.ancestors(source, name)
    for tensor, seen in _troubles(SegmentedModel(source, names, strict=False), feeds):
        if seen[0] or (infinities and seen[1]):
            name, trouble = tensor, seen
            break
    node = producers.get(name)
    if node is None:
        return f"tensor '{name}' holds", trouble
    label = f"node '{node.name}' ({node.op_type})" if node.name else f"a {node.op_type} node"
    return f"{label} is the first that is not finite: its output '{name}' holds", trouble


def _troubles(run: SegmentedModel, feeds: Mapping[str, Array]) -> Iterator[tuple[str, Trouble]]:
    for name in run.constants:
        yield name, _trouble(run.constant(name))
    for arrays, _ in run.steps(feeds):
        for name, array in arrays.items():
            yield name, _trouble(array)
        arrays.clear()


def _trouble(array: Array) -> Trouble:
    if array.dtype not in _FLOATS:
        return 0, 0
    seen = kernels.min_max(array, num_threads=1)
    return seen.nan, seen.pos_inf + seen.neg_inf


def _counted(trouble: Trouble, *, infinities: bool) -> str:
    nan, infinite = trouble
    infinite = infinite if infinities else 0
    what = [f"{n} {kind}" for n, kind in ((nan, "NaN"), (infinite, "infinite")) if n]
    return f"{' and '.join(what)} {'value' if nan + infinite == 1 else 'values'}"

"""Statistics files: read, merge, compare, and try range methods on them without running a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from qtool.deferred import later
from qtool.errors import ConfigError, DataError

if TYPE_CHECKING:
    from qtool.calibrate.difference import StatsDifference
    from qtool.calibrate.methods.comparison import MethodRow
    from qtool.calibrate.saved import SavedStatistics
else:
    SavedStatistics = later("qtool.calibrate.saved", "SavedStatistics")
    StatsDifference = later("qtool.calibrate.difference", "StatsDifference")
    MethodRow = later("qtool.calibrate.methods.comparison", "MethodRow")

ALL = "all"


def load_stats(path: str | os.PathLike[str]) -> SavedStatistics:
    """Read a statistics file, and check everything in it that can be checked without the model.

    Returns:
        What it holds: ``statistics`` by tensor name, the ``model`` and the ``coverage`` of data files.

    Raises:
        DataError: If it cannot be read, is no statistics file, has another schema version, or is damaged.
    """
    from qtool.calibrate.statsfile import load_statistics

    return load_statistics(path)


def merge_stats(
    stats: Sequence[str | os.PathLike[str] | SavedStatistics],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
) -> SavedStatistics:
    """Add up statistics of different samples of one model, exactly.

    The result is, to the byte of its file, that of one run over all of the samples, whatever the order.

    Args:
        stats: Statistics files, or what :func:`load_stats` returned; one or more. One file is in memory at a time.
        output: Statistics file to write.
        force: Overwrite it.

    Returns:
        The sum; also in ``output``, if that is given.

    Raises:
        ConfigError: If there is nothing to merge, or the output cannot be written.
        DataError: If a file cannot be read, or they are of different models or settings, or share samples.
    """
    from qtool.calibrate.saved import SavedStatistics, merge_saved
    from qtool.calibrate.statsfile import save_statistics
    from qtool.publish import check_statistics_destination

    if isinstance(stats, (str, os.PathLike, SavedStatistics)) or not stats:
        raise ConfigError("There are no statistics to merge; expected a list of statistics files.")
    if output is not None:
        target = Path(output)
        for one in stats:
            if isinstance(one, (str, os.PathLike)) and target.exists() and Path(one).exists() and target.samefile(one):
                raise ConfigError(
                    f"Output '{target}' is one of the files to merge; expected another file.",
                    hint="Choose another with -o.",
                )
        check_statistics_destination(target, None, force=force)
    merged = merge_saved(one if isinstance(one, SavedStatistics) else load_stats(one) for one in stats)
    if output is not None:
        save_statistics(output, merged, replace=force)
    return merged


def diff_stats(
    first: str | os.PathLike[str] | SavedStatistics, second: str | os.PathLike[str] | SavedStatistics
) -> StatsDifference:
    """What tells two statistics apart: model, number of samples, and each tensor whose numbers differ.

    Returns:
        What differs: in the model, in the number of samples, and of each tensor.

    Raises:
        DataError: If a file cannot be read.
    """
    from qtool.calibrate.difference import difference

    return difference(_loaded(first), _loaded(second))


def compare_methods(
    stats: str | os.PathLike[str] | SavedStatistics,
    *,
    methods: str | Sequence[str] = ALL,
    tensors: str = "*",
    activations: str = "uint8",
    symmetric: bool = False,
) -> Mapping[str, Sequence[MethodRow]]:
    """The range of each tensor under range methods, what it clips, and the signal to noise ratio that it gives.

    Args:
        stats: A statistics file, or what :func:`load_stats` returned.
        methods: ``all``, or names such as ``mse`` or ``percentile:99.9``.
        tensors: Names to show, with ``*``, ``?`` and ``[]``.
        activations: Element type of activations.
        symmetric: Whether their zero point is fixed.

    Returns:
        Rows by tensor name. ``chosen`` and ``why`` are those of the automatic choice among all methods.

    Raises:
        ConfigError: For an unknown method or element type.
        DataError: If a file cannot be read, a tensor has no histogram, or no name matches.
    """
    from qtool.calibrate.methods import METHODS, parse_method
    from qtool.calibrate.methods.comparison import MethodRow, compare
    from qtool.calibrate.methods.quality import quality
    from qtool.config import ACTIVATION_DTYPES
    from qtool.dtypes import QDTYPES

    if activations not in ACTIVATION_DTYPES:
        raise ConfigError(f"Activation type is '{activations}'; expected one of {', '.join(ACTIVATION_DTYPES)}.")
    dtype = QDTYPES[activations]
    names = [methods] if isinstance(methods, str) else list(methods)
    if not names:
        raise ConfigError(f"No range method is given; expected '{ALL}' or names, such as {', '.join(METHODS)}.")
    wanted = None if names == [ALL] else [(name, *parse_method(name)) for name in names]
    saved = _loaded(stats)
    result = {}
    for tensor in matching(saved, tensors):
        one = saved.statistics[tensor]
        if one.histogram is None:
            raise DataError(
                f"{saved.subject} has no histogram of tensor '{tensor}', which range methods are compared on.",
                hint="'qtool calibrate' without --method writes histograms.",
            )
        rows = compare(one, dtype, symmetric)
        if wanted is not None:
            known = {row.name: row for row in rows}
            rows = []
            for name, method, parameter in wanted:
                if name in known:
                    rows.append(known[name])
                    continue
                low, high = method.range_of(one, dtype, symmetric=symmetric, parameter=parameter)
                lost = quality(one, low, high, dtype, symmetric=symmetric)
                rows.append(MethodRow(name, low, high, lost.clipped_fraction, lost.sqnr_db, chosen=False, why=""))
        result[tensor] = rows
    return result


def matching(saved: SavedStatistics, pattern: str) -> list[str]:
    """The tensors whose name matches a pattern, or is it, in their order.

    Raises:
        DataError: If there are tensors, and none matches.
    """
    found = [name for name in saved.statistics if name == pattern or fnmatchcase(name, pattern)]
    if not found and saved.statistics:
        import difflib

        near = difflib.get_close_matches(pattern, list(saved.statistics), 3)
        hint = f"Did you mean {' or '.join(repr(name) for name in near)}?" if near else None
        raise DataError(f"{saved.subject} has no tensor that matches '{pattern}'.", hint=hint)
    return found


def _loaded(stats: str | os.PathLike[str] | SavedStatistics) -> SavedStatistics:
    return load_stats(stats) if isinstance(stats, (str, os.PathLike)) else stats

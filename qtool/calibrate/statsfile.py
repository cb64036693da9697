"""Statistics in a file: what calibration observed, of which model and which data, for quantizing without inference.

The file is an uncompressed ``.npz`` that NumPy opens without pickle:

    header          uint8, UTF-8 JSON: versions, the model's fingerprint, counts and extremes of each tensor, sample
                    count, SHA-256 of the data
    histograms      int64, (tensors, bins), in the order of the header; only if they were filled
    channel_absmax  float32, of the channels of all tensors that have some, one after the other
    channel_energy  float64, likewise
    batch_B_I       input I of kept batch B, on which a result is run before it is put in place

It holds no path, no time and no order of files, so equal statistics of the same samples are equal bytes, however they
were split and merged. Nothing of it is trusted when it is read: every
number is checked against the others, and no more memory is used than the file is large.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from qtool.calibrate.coverage import Coverage, SourceUse, combined
from qtool.calibrate.kept import Kept, KeptBatch
from qtool.calibrate.npz import NpzFile
from qtool.calibrate.saved import SavedStatistics
from qtool.calibrate.statistics import FIXED_POINT_BITS, HISTOGRAM_BITS, Statistics, TensorStatistics, exponent_for
from qtool.errors import ConfigError, DataError
from qtool.placing import place_file
from qtool.prepare.fingerprint import Fingerprint, Part
from qtool.version import package_version

SCHEMA_VERSION = 2
_KIND = "qtool statistics"
_BINS = 2 << HISTOGRAM_BITS
_MAX_HEADER_BYTES = 32 << 20
_COUNTS = ("count", "nan", "pos_inf", "neg_inf", "zeros", "sample_ranges")
_SUMS = ("sample_min_sum", "sample_max_sum")  # integers of hundreds of bits: hexadecimal text
_CHANNELS: dict[str, np.dtype[Any]] = {"channel_absmax": np.dtype("<f4"), "channel_energy": np.dtype("<f8")}
_READERS = {"clip_weight": math.inf, "floor": -math.inf, "coherence": math.inf}  # what null stands for
_NATIVE = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_HEXADECIMAL = re.compile(r"0|-?[1-9a-f][0-9a-f]{0,99}")
_LARGEST = float(np.finfo(np.float32).max)
_MAX_RANK = 64  # NumPy's
_TEXT = "text"  # NumPy's name of a text type holds the length, which differs from batch to batch
_HOW = "'qtool calibrate MODEL --data DATA -o STATS' makes one; samples are given with --calib."


def save_statistics(
    path: str | os.PathLike[str],
    saved: SavedStatistics,
    *,
    draft: str | os.PathLike[str] | None = None,
    check: Callable[[str], None] | None = None,
    replace: bool = True,
) -> None:
    """Write a statistics file; it appears whole or not at all.

    Args:
        path: Where it goes.
        saved: What it holds.
        draft: File in the same folder that is written first, and left behind only if the process is killed; by default
            one with a name of its own.
        check: Called with what was done before the file is put in place; it may refuse by raising.
        replace: Whether a file that is there by then may be replaced.

    Raises:
        ConfigError: If there is a file that may not be replaced, or it cannot be written.
    """
    target = Path(path)
    try:
        if draft is not None:
            try:
                with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
                    _write(archive, saved)
                place_file(Path(draft), target, replace=replace, called="Statistics file")
            finally:
                Path(draft).unlink(missing_ok=True)
            return
        # a folder, so that the file itself gets the permissions of any new file
        with tempfile.TemporaryDirectory(prefix=".qtool-", dir=target.parent) as folder:
            draft = Path(folder) / "statistics.npz"
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
                _write(archive, saved)
            if check is not None:
                check("saving the statistics")
            place_file(draft, target, replace=replace, called="Statistics file")
    except OSError as error:
        raise ConfigError(f"Statistics file '{target}' cannot be written: {error.strerror or error}.") from error


def load_statistics(path: str | os.PathLike[str]) -> SavedStatistics:
    """Read a statistics file and check everything in it that can be checked without the model.

    Raises:
        DataError: If it cannot be read, is no statistics file, has another schema version, or is damaged.
    """
    subject = f"Statistics file '{os.fspath(path)}'"
    with NpzFile(Path(path), subject=subject, supported=_HOW) as archive:
        if "header" not in archive.names:
            _refuse_kind(subject)
        held = sum(archive.member(name).nbytes for name in archive.names)
        if held > archive.path.stat().st_size:
            raise DataError(f"{subject} is compressed; expected plain members, as qtool writes them.", hint=_HOW)
        header = _header(archive)
        try:
            return _parsed(archive, header)
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:  # not what was written
            raise DataError(
                f"{subject} is damaged: {_reason(error)}.",
                hint="Calibrate again.",
            ) from error


# ------------------------------------------------------------------------------------------------------------- writing


def _write(archive: zipfile.ZipFile, saved: SavedStatistics) -> None:
    rows = saved.statistics.tensors
    histograms = [one.histogram for one in rows.values() if one.histogram is not None]
    if len(histograms) not in (0, len(rows)):
        raise ValueError("Bug: only some of the statistics have histograms")
    kept = saved.kept.batches
    first = kept[0].feeds if kept else {}
    header = {
        "kind": _KIND,
        "schema_version": SCHEMA_VERSION,
        "qtool_version": package_version(),
        "samples": saved.samples,
        "sources": [use.to_dict() for use in saved.coverage],
        "observed_samples": saved.statistics.samples,
        "histograms": bool(histograms),
        "histogram_bits": HISTOGRAM_BITS,
        "tensors": [_row(name, one) for name, one in rows.items()],
        "batches": {
            "inputs": [[name, _type_name(array.dtype)] for name, array in first.items()],
            "kept": [[batch.source, batch.index, batch.samples] for batch in kept],
            "cut": saved.kept.cut,
        },
        "model": {
            "sha256": saved.model.sha256,
            "parts": [[part.kind, part.name, part.sha256] for part in saved.model.parts],
        },
    }
    text = json.dumps(header, allow_nan=False, separators=(",", ":"))  # names may be any text: ASCII with escapes
    _write_array(archive, "header", np.frombuffer(text.encode("ascii"), np.uint8))
    if histograms:
        _write_rows(archive, "histograms", histograms)
    for key, dtype in _CHANNELS.items():
        pieces = [held for one in rows.values() if (held := getattr(one, key)) is not None]
        if pieces:
            channels: npt.NDArray[Any] = np.concatenate(pieces)
            _write_array(archive, key, channels.astype(dtype, copy=False))
    for number, batch in enumerate(kept):
        for index, name in enumerate(first):
            _write_array(archive, f"batch_{number}_{index}", _stored(batch.feeds[name]))


def _row(name: str, one: TensorStatistics) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name} | {key: int(getattr(one, key)) for key in _COUNTS}
    seen = one.finite > 0
    row |= {"minimum": float(one.minimum) if seen else None, "maximum": float(one.maximum) if seen else None}
    row |= {"exponent": one.exponent, "sample_ranges": one.sample_ranges}
    row |= {key: f"{getattr(one, key):x}" for key in _SUMS}
    row["channel_axis"] = one.channel_axis
    # JSON has no infinity: null is "nothing may be clipped" and "no floor"
    row |= {key: None if math.isinf(held := getattr(one, key)) else float(held) for key in _READERS}
    return row | {key: None if (held := getattr(one, key)) is None else len(held) for key in _CHANNELS}


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry without the time and the system that made it."""
    info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr = 3, 0o644 << 16
    return info


def _write_array(archive: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    """As ``numpy.save`` does, which would copy the elements first."""
    array = np.asarray(array, order="C")
    with archive.open(_entry(name), "w", force_zip64=True) as stream:
        npy_format.write_array_header_1_0(stream, npy_format.header_data_from_array_1_0(array))
        if array.nbytes:
            stream.write(array.reshape(-1).view(np.uint8).data)


def _write_rows(archive: zipfile.ZipFile, name: str, rows: list[npt.NDArray[np.int64]]) -> None:
    """Equal rows as one array, without a copy of all of them."""
    header = {"descr": "<i8", "fortran_order": False, "shape": (len(rows), _BINS)}
    with archive.open(_entry(name), "w", force_zip64=True) as stream:
        npy_format.write_array_header_1_0(stream, header)
        for row in rows:
            stream.write(row.astype("<i8", copy=False).data)


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether a type is not NumPy's own (bfloat16, int4), so that a ``.npy`` header cannot name it."""
    return dtype.isbuiltin == 2


def _storage(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}") if _is_foreign(dtype) else dtype


def _stored(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.view(_storage(array.dtype)) if _is_foreign(array.dtype) else array


def _type_name(dtype: np.dtype[Any]) -> str:
    return _TEXT if dtype.kind in "US" else dtype.name


# ------------------------------------------------------------------------------------------------------------- reading


def _refuse_kind(subject: str) -> NoReturn:
    raise DataError(f"{subject} holds no statistics of qtool.", hint=_HOW)


def _header(archive: NpzFile) -> dict[str, Any]:
    member = archive.member("header")
    if member.dtype != np.uint8 or len(member.shape) != 1 or member.nbytes > _MAX_HEADER_BYTES:
        _refuse_kind(archive.subject)
    try:
        header = json.loads(archive.read(member).tobytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError):  # no JSON, not UTF-8, too deep
        _refuse_kind(archive.subject)
    if not isinstance(header, dict) or header.get("kind") != _KIND:
        _refuse_kind(archive.subject)
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{archive.subject} has schema version {str(version)[:40]}; this qtool reads version {SCHEMA_VERSION}.",
            hint="Calibrate again with this version of qtool.",
        )
    return header


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:160] or type(error).__name__
    return f"{text} is missing" if isinstance(error, KeyError) else text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parsed(archive: NpzFile, header: Mapping[str, Any]) -> SavedStatistics:
    """The contents; LookupError, TypeError and the like where the header is not what was written."""
    if header["histogram_bits"] != HISTOGRAM_BITS:
        raise ValueError(f"histograms of {_BINS} bins are expected")
    model = Fingerprint(
        tuple(Part(_text(kind), _text(name), _sha(sha)) for kind, name, sha in _list(header["model"]["parts"]))
    )
    if model.sha256 != header["model"]["sha256"]:
        raise ValueError("the model's parts do not match their digest")
    rows = _list(header["tensors"])
    tensors: dict[str, TensorStatistics] = {}
    absmax, energy = (_channels(archive, key, [row[key] for row in rows]) for key in _CHANNELS)
    with closing(_histograms(archive, len(rows), wanted=header["histograms"])) as histograms:
        for row, histogram, largest, weights in zip(rows, histograms, absmax, energy, strict=True):
            name = _text(row["name"])
            if name in tensors:
                raise ValueError(f"tensor '{name}' is there twice")
            one = _checked(name, row, histogram)
            one.channel_axis, one.channel_absmax, one.channel_energy = row["channel_axis"], largest, weights
            _check_channels(name, one)
            one.clip_weight, one.floor, one.coherence = (_number(row[key], null) for key, null in _READERS.items())
            if not (one.clip_weight >= 1.0 and one.floor <= 0.0 and 0.0 <= one.coherence < math.inf):
                raise ValueError(f"what is said about the readers of tensor '{name}' is out of bounds")
            tensors[name] = one
    _require_no_others(archive, header)
    coverage = tuple(_use(use) for use in _list(header["sources"]))
    if combined([coverage], repeats=True) != coverage or sum(use.samples for use in coverage) != header["samples"]:
        raise ValueError("the sources contradict each other or the number of samples")
    observed = _count(header["observed_samples"])
    if observed != (header["samples"] if tensors else 0):
        raise ValueError(f"{observed} samples were observed of {header['samples']}")
    return SavedStatistics(
        statistics=Statistics(tensors, observed),
        model=model,
        coverage=coverage,
        kept=_kept(archive, header["batches"], coverage),
        subject=archive.subject,
    )


def _histograms(archive: NpzFile, count: int, *, wanted: object) -> Generator[npt.NDArray[np.int64] | None]:
    if not isinstance(wanted, bool) or wanted != ("histograms" in archive.names):
        raise ValueError("histograms are missing")
    if not wanted:
        yield from (None for _ in range(count))
        return
    member = archive.member("histograms")
    if member.dtype != np.dtype("<i8") or member.shape != (count, _BINS) or member.fortran_order:
        raise ValueError(f"histograms are {member.dtype}{list(member.shape)}, expected int64{[count, _BINS]}")
    for row in archive.rows(member, 1):
        yield row[0]


def _channels(archive: NpzFile, key: str, lengths: list[Any]) -> list[npt.NDArray[Any] | None]:
    """Of each tensor the channels' numbers, or None."""
    total = sum(_count(length) for length in lengths if length is not None)
    if key not in archive.names:
        if any(length is not None for length in lengths):
            raise ValueError(f"array '{key}' is missing")
        return lengths
    member = archive.member(key)
    if member.dtype != _CHANNELS[key] or member.shape != (total,):
        raise ValueError(f"array '{key}' is {member.dtype}{list(member.shape)}, expected {_CHANNELS[key]}[{total}]")
    numbers = archive.read(member)
    stops = accumulate(0 if length is None else length for length in lengths)
    return [
        None if length is None else numbers[stop - length : stop] for length, stop in zip(lengths, stops, strict=True)
    ]


def _number(held: object, null: float) -> float:
    if held is None:
        return null
    if not isinstance(held, float):
        raise TypeError("a number is expected")
    return held


def _check_channels(name: str, one: TensorStatistics) -> None:
    """Refuse channels that contradict the tensor or each other."""
    held = [numbers for numbers in (one.channel_absmax, one.channel_energy) if numbers is not None]
    if one.channel_axis is None:
        if held:
            raise ValueError(f"tensor '{name}' has channels without an axis")
        return
    if type(one.channel_axis) is not int or abs(one.channel_axis) > _MAX_RANK:
        raise ValueError(f"channel axis of tensor '{name}' is none")
    if any(not np.isfinite(numbers).all() or (numbers < 0).any() for numbers in held):
        raise ValueError(f"channels of tensor '{name}' are no finite numbers from 0 up")
    if one.channel_absmax is None:
        if one.count or held:
            raise ValueError(f"channels of tensor '{name}' are missing")
    elif any(len(numbers) != len(one.channel_absmax) for numbers in held):
        raise ValueError(f"tensor '{name}' has two numbers of channels")
    elif float(one.channel_absmax.max(initial=0.0)) != max(-one.minimum, one.maximum, 0.0):
        raise ValueError(f"channels of tensor '{name}' do not fit its extremes")


def _checked(name: str, row: Mapping[str, Any], histogram: npt.NDArray[np.int64] | None) -> TensorStatistics:
    """Statistics whose numbers agree with each other."""
    one = TensorStatistics(histogram=histogram)
    for key in _COUNTS:
        setattr(one, key, _count(row[key]))
    for key in _SUMS:
        setattr(one, key, _big_integer(row[key]))
    if one.finite < one.zeros or one.finite < one.sample_ranges or (one.finite > 0) != (one.sample_ranges > 0):
        raise ValueError(f"counts of tensor '{name}' contradict each other")
    if one.finite:
        minimum, maximum = row["minimum"], row["maximum"]
        if not (isinstance(minimum, float) and isinstance(maximum, float)):
            raise TypeError(f"extremes of tensor '{name}' are no numbers")
        if not -_LARGEST <= minimum <= maximum <= _LARGEST:
            raise ValueError(f"extremes of tensor '{name}' are no range")
        one.minimum, one.maximum = minimum, maximum
    elif row["minimum"] is not None or row["maximum"] is not None:
        raise ValueError(f"tensor '{name}' has extremes without values")
    low, high = (int(math.ldexp(x, FIXED_POINT_BITS)) if one.finite else 0 for x in (one.minimum, one.maximum))
    others = max(one.sample_ranges - 1, 0)  # the samples beside the one that holds the extreme
    if not (
        low * one.sample_ranges <= one.sample_min_sum <= low + high * others
        and low * others + high <= one.sample_max_sum <= high * one.sample_ranges
        and one.sample_min_sum <= one.sample_max_sum
    ):
        raise ValueError(f"sums of the extremes of tensor '{name}' do not fit its extremes")
    one.exponent = row["exponent"]
    if histogram is None:
        if one.exponent is not None:
            raise ValueError(f"tensor '{name}' has an exponent without a histogram")
        return one
    if type(one.exponent) is not int or one.exponent != exponent_for(one.minimum, one.maximum):
        raise ValueError(f"exponent of tensor '{name}' does not fit its extremes")
    # in halves: the sum of damaged counts may exceed int64
    total = (int((histogram >> 32).sum()) << 32) + int((histogram & 0xFFFFFFFF).sum())
    if int(histogram.min()) < 0 or total != one.finite:
        raise ValueError(f"histogram of tensor '{name}' does not hold as many values as were counted")
    return one


def _require_no_others(archive: NpzFile, header: Mapping[str, Any]) -> None:
    """Refuse members that the header knows nothing of."""
    batches = header["batches"]
    known = {"header", "histograms", *_CHANNELS}
    known |= {f"batch_{b}_{i}" for b in range(len(batches["kept"])) for i in range(len(batches["inputs"]))}
    for name in (*archive.names, *archive.strangers):
        if name not in known:
            raise ValueError(f"member '{name}' is unknown")


def _use(row: Mapping[str, Any]) -> SourceUse:
    held = None if row["held"] is None else _count(row["held"])
    used = []
    end = 0
    for start, stop, times in _list(row["used"]):
        if not end <= _count(start) < _count(stop) or _count(times) < 1 or (held is not None and stop > held):
            raise ValueError("the stretches of a source overlap, or go beyond its end")
        used.append((start, stop, times))
        end = stop
    if not used:
        raise ValueError("a source has no stretches")
    return SourceUse(_sha(row["sha256"]), held, tuple(used), tuple(_sha(sha256) for sha256 in _list(row["files"])))


def _kept(archive: NpzFile, table: Mapping[str, Any], coverage: Coverage) -> Kept:
    inputs = [(_text(name), None if kind == _TEXT else _element_type(kind)) for name, kind in _list(table["inputs"])]
    known = None if any(use.held is None for use in coverage) else {use.sha256 for use in coverage}
    batches = []
    for number, (source, place, count) in enumerate(_list(table["kept"])):
        if known is not None and source not in known:
            raise ValueError("a kept batch is of an unknown source")
        feeds = {}
        for index, (name, dtype) in enumerate(inputs):
            key = f"batch_{number}_{index}"
            if key not in archive.names:
                raise ValueError(f"array '{key}' is missing")
            member = archive.member(key)
            if member.dtype.kind not in "US" if dtype is None else member.dtype != _storage(dtype):
                raise ValueError(f"array '{key}' is {member.dtype}, not what the header says")
            array = archive.read(member)
            feeds[name] = array if dtype is None else array.view(dtype)
        batches.append(KeptBatch(_sha(source), _count(place), _count(count), feeds))
    cut = None if table["cut"] is None else (_sha(table["cut"][0]), _count(table["cut"][1]))
    kept = Kept.of(batches, cut)
    if (
        [b.place for b in kept.batches] != [b.place for b in batches]
        or kept.cut != cut
        or len(inputs) != len({name for name, _ in inputs})
    ):
        raise ValueError("the kept batches are not those that are to be kept")
    return kept


def _element_type(name: object) -> np.dtype[Any]:
    if name in _NATIVE:
        return np.dtype(_text(name))
    foreign = getattr(ml_dtypes, _text(name), None)
    if not (isinstance(foreign, type) and issubclass(foreign, np.generic)):
        raise ValueError(f"'{name}' is no element type")
    return np.dtype(foreign)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value


def _big_integer(value: object) -> int:
    text = _text(value)
    if not _HEXADECIMAL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no integer")
    return int(text, 16)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]!r} is no list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no name")
    return value


def _sha(value: object) -> str:
    text = _text(value)
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"{text[:80]!r} is no SHA-256")
    return text

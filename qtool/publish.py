"""Verify a quantized model and put it in place: check, load, run, compare, rename.

Everything happens in a temporary folder beside the destination; the destination changes in the last step or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qtool.errors import ConfigError, QtoolError, VerificationError
from qtool.placing import place_file
from qtool.runtime import Session, create_session
from qtool.runtime.paths import is_utf8
from qtool.signal import db, signal_and_noise, sqnr_db

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Feeds = Mapping[str, npt.NDArray[Any]]

# protobuf's limit is 2 GiB; leave room for the graph itself
_INLINE_LIMIT = 1_900_000_000
# suffixes by which onnx takes a file for one of its text formats
_TEXT_SUFFIXES = frozenset(
    (".json", ".onnxjson", ".textproto", ".prototxt", ".pbtxt", ".txtpb", ".onnxtxt", ".onnxtext")
)
# An optimized run may differ from an unoptimized one by a code here and there. It is suspicious when that alone makes
# it worse by this much against the float model.
_MISCOMPILE_DB = 3.0
_REMARK = 240  # characters of a runtime's message that a note quotes
_HARMLESS_DB = 60.0  # above this, a difference is rounding noise of float32
# Where onnxruntime fuses stored weights with a product, it rounds the activations to int8 in blocks: some 45 dB for one
# product, less for many in a row.
_FUSED_WEIGHTS_DB = 25.0


@dataclass(frozen=True)
class Published:
    """A model that was verified and is in place.

    Attributes:
        path: Where it is; None if it was only wanted in memory.
        nbytes: Bytes on disk, external data included.
        sqnr_db: Output name -> dB against the float model on the samples that were run.
        samples: How many those were.
        notes: What a user should know.
    """

    path: Path | None
    nbytes: int
    sqnr_db: dict[str, float]
    samples: int
    notes: tuple[str, ...] = ()


def default_output(source: Path, weights: str = "int8") -> Path:
    """Where the quantized form of a model goes unless something else is asked for; ``weights`` is their type."""
    return source.parent / f"{source.stem}.{weights}.onnx"


def default_prepared(source: Path) -> Path:
    """Where the prepared form of a model goes unless something else is asked for."""
    return source.parent / f"{source.stem}.prepared.onnx"


def default_statistics(source: Path) -> Path:
    """Where the statistics of a model go unless something else is asked for."""
    return source.parent / f"{source.stem}.stats.npz"


def check_destination(
    output: Path,
    source: Path | None,
    *,
    force: bool,
    source_data: Collection[Path] = (),
    inputs: Collection[Path] = (),
) -> None:
    """Refuse a destination of a model before any work is done.

    Args:
        output: Destination.
        source: The source model, if it is a file.
        force: Whether existing files may be replaced.
        source_data: Files that hold the source model's weights. If there are any, the result has such a file, too.
        inputs: Other files that are read.

    Raises:
        ConfigError: If it is the source model, its data or an input, exists (without ``force``), cannot be a model
            file, or its folder is missing or not writable.
    """
    _check_place(output)
    if not is_utf8(output):
        raise ConfigError(f"Output '{output}' is not a UTF-8 path, which onnx and onnxruntime cannot open.")
    if output.suffix in _TEXT_SUFFIXES:
        raise ConfigError(
            f"Output '{output}' has a suffix that onnx reads as text; expected a binary model.",
            hint=f"Name it '{output.stem}.onnx'.",
        )
    for target in [output, data_path(output)] if source_data else [output]:
        _check_target(target, source, force=force, source_data=source_data, inputs=inputs)
    _check_writable(output.parent)


def check_statistics_destination(
    output: Path,
    source: Path | None,
    *,
    force: bool,
    source_data: Collection[Path] = (),
    inputs: Collection[Path] = (),
) -> None:
    """Refuse a destination of a statistics file before any work is done; see :func:`check_destination`.

    Raises:
        ConfigError: If it is a file that is read, exists (without ``force``), or its folder is missing or not writable.
    """
    _check_place(output)
    _check_target(output, source, force=force, source_data=source_data, inputs=inputs)
    _check_writable(output.parent)


def _check_place(output: Path) -> None:
    if str(output) == "-":
        raise ConfigError("Output '-' would be stdout, which gets the path of the result; expected the name of a file.")
    if output.is_dir():
        raise ConfigError(f"Output '{output}' is a directory; expected a file name.")
    if not output.parent.is_dir():
        raise ConfigError(
            f"Output folder '{output.parent}' does not exist.", hint="Create it, or choose another with -o."
        )


def _check_target(
    target: Path, source: Path | None, *, force: bool, source_data: Collection[Path], inputs: Collection[Path]
) -> None:
    other = "Choose another with -o."
    if source is not None and _is_same(target, source):
        raise ConfigError(f"Output '{target}' is the input model itself; expected another file.", hint=other)
    if any(_is_same(target, path) for path in source_data):
        raise ConfigError(f"Output '{target}' holds the input model's weights; expected another file.", hint=other)
    if any(_is_same(target, path) for path in inputs):
        raise ConfigError(f"Output '{target}' is what the model is calibrated from; expected another file.", hint=other)
    if target.exists() and not target.is_file():
        raise ConfigError(f"Output '{target}' is not a regular file.", hint=other)
    if os.path.lexists(target) and not force:
        raise ConfigError(
            f"Output '{target}' exists already.", hint="Overwrite it with --force, or choose another with -o."
        )


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"Output folder '{folder}' is not writable.", hint="Choose another with -o.")


def data_path(output: Path) -> Path:
    """The file of a model's weights, beside the model."""
    return output.with_name(output.name + ".data")


def _is_same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)


@contextmanager
def staging(output: Path | None) -> Iterator[Path]:
    """A temporary folder on the destination's file system, gone afterwards whatever happens.

    Raises:
        ConfigError: If it cannot be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=".qtool-", dir=None if output is None else output.parent))
    except OSError as error:
        where = tempfile.gettempdir() if output is None else output.parent
        raise ConfigError(f"Output folder '{where}' is not writable: {error.strerror}.") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(
    model: ir.Model,
    float_model: str | Path | onnx.ModelProto,
    feeds: Iterable[tuple[int, Feeds]],
    output: Path | None,
    *,
    provenance: Mapping[str, Any],
    external_data: bool = False,
    num_threads: int | None = None,
    base_dir: str | Path | None = None,
    engine: str = "ort",
    trial: bool = False,
    replace: bool = True,
    reference: Session | None = None,
    check: Callable[[str], None] | None = None,
    accept: Callable[[Mapping[str, float]], None] | None = None,
) -> tuple[Published, onnx.ModelProto | None]:
    """Write, verify and move into place.

    Args:
        model: The quantized model; its lazy weights are produced while it is saved.
        float_model: What it is compared with.
        feeds: (number of samples, inputs) to run both on; the first is also run without optimizations.
        output: Destination; None keeps the result in memory.
        provenance: Recorded in the model's metadata under ``qtool.<key>``.
        external_data: Store weights in ``<output>.data`` beside the model, as the source did.
        num_threads: Threads of the runtime.
        base_dir: Folder of the float model's external data, if it is a proto.
        engine: What runs the result; the float model runs in onnxruntime.
        trial: The feeds are made up: they show that the result runs, not how good it is. ``sqnr_db`` stays empty, and
            a float model that does not run on them is a note.
        replace: Whether files that are there by then may be replaced.
        reference: The float model, loaded or as far as its outputs for ``feeds`` are known; None loads it.
        check: Called with what was done, after each step before the model is put in place; it may refuse by raising.
        accept: Called with the decibels of the outputs before the model is put in place; it may refuse by raising.

    Returns:
        What was published, and the model as a proto if ``output`` is None.

    Raises:
        VerificationError: If the model does not check, load, run or keep its interface. Nothing is put in place.
        ConfigError: If there is a file that may not be replaced, or it cannot be written.
    """
    import onnx

    model.graph.name = model.graph.name or "graph"  # ONNX asks for one, and some exporters write none
    for key, value in provenance.items():
        model.metadata_props[f"qtool.{key}"] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    with staging(output) as folder:
        path = folder / (output.name if output is not None else "model.onnx")
        data = save_model(model, path, external=external_data, called=f"Output '{output}'" if output else None)
        faults = _check(path, float_model)
        if check is not None:
            check("writing the model")
        if reference is None:
            reference = create_session(float_model, num_threads=num_threads, base_dir=base_dir)
        sqnr, samples, notes = _compare(path, reference, feeds, num_threads=num_threads, engine=engine, trial=trial)
        notes = faults + notes
        if check is not None:
            check("verifying the model")
        if accept is not None:
            accept(sqnr)
        nbytes = path.stat().st_size + (data.stat().st_size if data is not None else 0)
        if output is None:
            return Published(None, nbytes, sqnr, samples, notes), onnx.load(path)
        try:
            _put_in_place(path, data, output, replace=replace)
        except OSError as error:
            raise ConfigError(f"Output '{output}' cannot be written: {error.strerror}.") from error
    return Published(output, nbytes, sqnr, samples, notes), None


def _put_in_place(path: Path, data: Path | None, output: Path, *, replace: bool) -> None:
    """The model and its data; whatever ends this early leaves the old pair."""
    if data is None:
        place_file(path, output, replace=replace)
        return
    target, old = data_path(output), data.with_name("old.data")
    try:
        if replace and os.path.lexists(target):
            target.replace(old)
        place_file(data, target, replace=replace)
        place_file(path, output, replace=replace)
    except BaseException:
        if os.path.lexists(old):
            old.replace(target)
        elif not data.exists() or _is_same(data, target):  # it is ours
            target.unlink(missing_ok=True)
        raise


def save_model(model: ir.Model, path: Path, *, external: bool, called: str | None = None) -> Path | None:
    """Save a model whose weights are lazy; one that is too large for a single file gets a second one.

    Args:
        model: Any.
        path: Where to.
        external: Keep all large weights in a file of their own, however large the model is.
        called: What it is in messages; by default a temporary file.

    Returns:
        The external data file, if there is one.

    Raises:
        ConfigError: If the files cannot be written.
    """
    import onnx_ir as ir

    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    try:
        if not external and weights < _INLINE_LIMIT:
            ir.save(model, path)
            return None
        data = data_path(path)
        ir.save(model, path, external_data=data.name)
    except OSError as error:
        what = called or f"Temporary file '{path}'"
        raise ConfigError(f"{what} cannot be written: {error.strerror or error}.") from error
    if data.exists() and not data.stat().st_size:  # every tensor was small enough for the model file
        data.unlink()
    return data if data.exists() else None


def _check(path: Path, float_model: str | Path | onnx.ModelProto) -> tuple[str, ...]:
    """Check a file; a fault that the float model has, too, is a note: it is not ours, and runtimes may not mind."""
    fault = _fault(path)
    if fault is None:
        return ()
    if _fault(float_model) == fault:
        return (f"the model is not valid ONNX, before and after: {fault}",)
    raise VerificationError(f"The quantized model is not valid ONNX: {fault}")


def _fault(model: str | Path | onnx.ModelProto) -> str | None:
    """What onnx's checker has against a model, in one line."""
    import onnx

    try:
        onnx.checker.check_model(str(model) if isinstance(model, Path) else model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return _first_line(error)
    return None


def _compare(
    path: Path,
    reference: Session,
    feeds: Iterable[tuple[int, Feeds]],
    *,
    num_threads: int | None,
    engine: str,
    trial: bool,
) -> tuple[dict[str, float], int, tuple[str, ...]]:
    with _blamed_on_the_result():
        plain = create_session(path, engine=engine, optimize=False, num_threads=num_threads)
        fast = plain if engine != "ort" else create_session(path, optimize=True, num_threads=num_threads)
    _same_interface(reference, fast)
    sums: dict[str, tuple[float, float]] = {}
    notes = [f"output '{name}' is {kind}: it was not compared" for name, kind in reference.opaque_outputs.items()]
    samples = 0
    for count, batch in _one_that_runs(reference, feeds, notes) if trial else feeds:
        expected = reference.run(batch)
        with _blamed_on_the_result():
            got = fast.run(batch)
            unoptimized = plain.run(batch) if samples == 0 and plain is not fast else None
        if unoptimized is not None:
            notes += _compile_notes(expected, unoptimized, got, fused_weights=trial)
        samples += count
        for name, y in expected.items():
            if not isinstance(y, np.ndarray) or y.dtype.kind not in "fV":
                continue  # strings and integers have no decibels
            signal, noise = _judge(name, y, got[name])
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + signal, before[1] + noise)
    return {name: db(*pair) for name, pair in sums.items() if not trial}, samples, tuple(notes)


def _one_that_runs(
    reference: Session, feeds: Iterable[tuple[int, Feeds]], notes: list[str]
) -> Iterator[tuple[int, Feeds]]:
    """The first of several made-up inputs that the float model accepts; a note if there is none."""
    refused = None
    for count, batch in feeds:
        try:
            reference.run(batch)
        except QtoolError as error:
            refused = refused or error.message
            continue
        yield count, batch
        return
    if refused is not None:
        notes.append(f"the result was loaded, but not run: random input does not suit the model ({refused[:_REMARK]})")


@contextmanager
def _blamed_on_the_result() -> Iterator[None]:
    try:
        yield
    except QtoolError as error:
        raise VerificationError(f"The quantized model does not run: {error.message}", hint=error.hint) from error


def _judge(name: str, expected: npt.NDArray[Any], got: npt.NDArray[Any]) -> tuple[float, float]:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise VerificationError(
            f"Output '{name}' of the quantized model is {got.dtype}{list(got.shape)}; the float model's is "
            f"{expected.dtype}{list(expected.shape)}."
        )
    broken = ~np.isfinite(got.astype(np.float64)) & np.isfinite(expected.astype(np.float64))
    if broken.any():
        raise VerificationError(
            f"Output '{name}' of the quantized model has {int(broken.sum())} NaN or infinite values where the float "
            "model has none."
        )
    return signal_and_noise(expected, got)


def _compile_notes(
    expected: Mapping[str, npt.NDArray[Any]],
    plain: Mapping[str, npt.NDArray[Any]],
    fast: Mapping[str, npt.NDArray[Any]],
    *,
    fused_weights: bool,
) -> Iterator[str]:
    for name, y in expected.items():
        if not isinstance(y, np.ndarray) or y.dtype.kind != "f" or plain[name].shape != y.shape:
            continue
        without, with_ = sqnr_db(y, plain[name]), sqnr_db(y, fast[name])
        apart = sqnr_db(plain[name], fast[name])
        harmless = apart > _FUSED_WEIGHTS_DB if fused_weights else with_ >= _HARMLESS_DB
        if with_ < without - _MISCOMPILE_DB and not harmless:
            yield (
                f"output '{name}' is worse with onnxruntime's optimizations ({with_:.1f} dB) than without "
                f"({without:.1f} dB): more than the usual code here and there"
            )


def _same_interface(reference: Session, candidate: Session) -> None:
    for kind in ("inputs", "outputs"):
        old = [(i.name, i.dtype) for i in getattr(reference, kind)]
        new = [(i.name, i.dtype) for i in getattr(candidate, kind)]
        if old != new:
            raise VerificationError(f"The quantized model's {kind} are {new}; the float model's are {old}.")
    if dict(reference.opaque_outputs) != dict(candidate.opaque_outputs):
        raise VerificationError(
            f"The quantized model's further outputs are {dict(candidate.opaque_outputs)}; the float model's are "
            f"{dict(reference.opaque_outputs)}."
        )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]

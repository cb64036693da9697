"""convert(): a quantized model in another form, verified against the one it was made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.arguments import checked_arguments
from qtool.api.clock import Clock
from qtool.api.data import VERIFY_SAMPLES, VERIFY_SECONDS, files_of, first_batches
from qtool.api.made_up import random_feeds
from qtool.api.models import as_runnable, comparable, inputs_of
from qtool.api.settings import ModelLike, Progress
from qtool.deferred import later
from qtool.errors import ModelError, VerificationError
from qtool.version import package_version

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.calibrate.samples import Data
else:
    Data = later("qtool.calibrate.samples", "Data")

# One code more or less in a few places of each layer leaves more than this; a wrong axis, scale or zero point does not.
SAME_DB = 20.0
_SLACK_DB = 3.0


@dataclass(frozen=True)
class ConvertResult:
    """What :func:`convert` did.

    Attributes:
        model_path: The converted file; None for a result in memory.
        model: The converted model, if there is no path.
        to: Its form.
        converted: Operator -> nodes that were rewritten.
        left: (node, operator, reason) of quantized nodes that keep their form, which is valid beside the other.
        dequantized: Weights that became floats.
        unrounded: Pairs of quantizers that were taken away.
        bytes_before: Size of the source, external data included.
        bytes_after: Size of the result.
        sqnr_db: Output name -> dB against the source model; infinite where they are equal.
        reference_db: Output name -> (dB of the source, dB of the result) against the reference, where one was given.
        verified_samples: How many samples both ran on.
        verified_on: ``given`` or ``random`` samples.
        notes: What a user should know.
        seconds: Stage -> wall time.
    """

    model_path: Path | None
    model: onnx.ModelProto | None
    to: str
    converted: dict[str, int]
    left: tuple[tuple[str, str, str], ...]
    dequantized: int
    unrounded: int
    bytes_before: int
    bytes_after: int
    sqnr_db: dict[str, float]
    reference_db: dict[str, tuple[float, float]]
    verified_samples: int
    verified_on: str
    notes: list[str]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Strict-JSON-ready: infinities are strings."""
        return {
            "schema_version": 1,
            "model": str(self.model_path) if self.model_path else None,
            "to": self.to,
            "converted": self.converted,
            "left": [{"node": n, "op_type": op, "reason": reason} for n, op, reason in self.left],
            "dequantized_weights": self.dequantized,
            "unrounded_activations": self.unrounded,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "sqnr_db": {name: _number(value) for name, value in self.sqnr_db.items()},
            "reference_db": {
                name: {"source": _number(a), "result": _number(b)} for name, (a, b) in self.reference_db.items()
            },
            "verified_samples": self.verified_samples,
            "verified_on": self.verified_on,
            "notes": list(self.notes),
            "seconds": {stage: round(value, 4) for stage, value in self.seconds.items()},
        }


@checked_arguments
def convert(
    model: ModelLike,
    to: str,
    *,
    output: str | os.PathLike[str] | None = None,
    data: Data | None = None,
    reference: ModelLike | None = None,
    samples: int | None = None,
    force: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> ConvertResult:
    """Write a quantized model in another form; every scale, zero point and code stays what it is, to the last bit.

    Args:
        model: A model of standard ONNX quantized operators, of whatever tool; never changed.
        to: ``qlinear``: QLinearMatMul and QLinearConv where they can hold the parameters, and movers of codes.
            ``qdq``: float operators between QuantizeLinear and DequantizeLinear. ``float``: no codes at all; weights
            are what their codes stand for, activations are not rounded any more.
        output: Destination; by default ``<model>.<to>.onnx`` beside a model that is a file, and memory otherwise.
        data: Samples that both models are run on; by default seeded random ones.
        reference: The float model that was quantized: quality of source and result is measured against it.
        samples: Use this many of the samples.
        force: Overwrite the output.
        num_threads: Threads of the runtime.
        progress: Called with (stage, done, total).

    Returns:
        What was done. The model is in ``model_path``, or in ``model`` if there is no path.

    Raises:
        ConfigError: For an unknown form or a destination that cannot be used.
        ModelError: For a model that cannot be read, is not quantized, or has no counterpart in the form.
        DataError: For samples that do not fit.
        VerificationError: If the result does not check, load or run, or is not the same function; nothing is written.
    """
    from qtool.convert import FORMS, convert_model
    from qtool.errors import ConfigError
    from qtool.prepare.load import describe_source, load_model
    from qtool.publish import check_destination, publish

    if to not in FORMS:
        raise ConfigError(f"Form '{to}' is unknown; expected one of {', '.join(FORMS)}.")
    clock = Clock(progress)
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    with clock("convert"):
        loaded = load_model(model)
        source = describe_source(model, loaded)
        target = Path(output) if output is not None else None if path is None else default_destination(path, to)
        if target is not None:
            check_destination(target, path, force=force, source_data=source.data_files, inputs=files_of(data))
        conversion = convert_model(loaded, to)
    notes = list(conversion.notes)
    if not (conversion.converted or conversion.dequantized or conversion.unrounded):
        notes.append(f"nothing was rewritten: what could be in {to} form is in it already")
    with clock("verify"), ExitStack() as cleanup:
        runnable, base_dir, remove = as_runnable(model, loaded, _named(loaded))
        cleanup.callback(remove)
        batches, remark = _feeds(loaded, data, samples, runnable, base_dir, num_threads)
        notes += [remark] if remark else []
        provenance = {"convert.to": to, "convert.version": package_version(), "convert.source.sha256": source.sha256}
        try:
            published, proto = publish(
                conversion.model,
                runnable,
                batches,
                target,
                provenance=provenance,
                external_data=bool(source.data_files),
                num_threads=num_threads,
                base_dir=base_dir,
                replace=force,
                accept=lambda found: _require_same(
                    found, to, lambda: _own_agreement(runnable, base_dir, batches, num_threads)
                ),
            )
        except VerificationError as error:
            raise VerificationError(_reworded(error.message), hint=error.hint) from error
        against = {}
        if reference is not None and batches:
            result: ModelLike = published.path if published.path is not None else _not_none(proto)
            against = _against(reference, [runnable, comparable(result, cleanup)], batches, num_threads, cleanup)
    return ConvertResult(
        model_path=published.path,
        model=proto,
        to=to,
        converted=conversion.converted,
        left=conversion.left,
        dequantized=conversion.dequantized,
        unrounded=conversion.unrounded,
        bytes_before=source.nbytes,
        bytes_after=published.nbytes,
        sqnr_db=published.sqnr_db,
        reference_db=against,
        verified_samples=published.samples,
        verified_on="random" if data is None else "given",
        notes=[*notes, *(_reworded(note) for note in published.notes)],
        seconds=clock.seconds,
    )


def default_destination(source: Path, to: str) -> Path:
    """Where the converted form of a file goes unless something else is asked for."""
    return source.parent / f"{source.stem}.{to}.onnx"


def _named(loaded: ir.Model) -> ir.Model:
    """The source under node names that every runtime takes."""
    from qtool.prepare.name_nodes import NameNodesPass

    copy = loaded.clone()
    NameNodesPass(bodies=True)(copy)
    return copy


def _feeds(
    loaded: ir.Model,
    data: Data | None,
    samples: int | None,
    runnable: str | Path | onnx.ModelProto,
    base_dir: Path | None,
    num_threads: int | None,
) -> tuple[list[tuple[int, Mapping[str, Any]]], str | None]:
    from qtool.calibrate.samples import open_samples

    if data is None:
        found, remark = random_feeds(loaded, runnable, num_threads=num_threads, base_dir=base_dir)
        return found, None if remark is None else remark.replace("--calib", "--data")
    opened = open_samples(data, inputs_of(loaded), limit=samples)
    return list(first_batches(opened, VERIFY_SAMPLES, VERIFY_SECONDS)), None


def _require_same(sqnr_db: Mapping[str, float], to: str, own: Callable[[], Mapping[str, float]]) -> None:
    """Refuse a result that is another function than its source; without rounding it is one on purpose.

    Args:
        sqnr_db: Decibels of the result against the source.
        to: Its form.
        own: Those of the source against itself without the runtime's optimizations: where single codes change that
            much, more cannot be asked for.
    """
    if to == "float" or all(value >= SAME_DB for value in sqnr_db.values()):
        return
    itself = own()
    for name, value in sqnr_db.items():
        if value < min(SAME_DB, itself.get(name, SAME_DB) - _SLACK_DB):
            raise VerificationError(
                f"Output '{name}' of the converted model is {value:.1f} dB from the source model; expected equal "
                f"numbers but for a code here and there ({SAME_DB:.0f} dB or more).",
                hint="If random input does not suit the model, give samples with --data.",
            )


def _own_agreement(
    runnable: str | Path | onnx.ModelProto,
    base_dir: Path | None,
    batches: Sequence[tuple[int, Mapping[str, Any]]],
    num_threads: int | None,
) -> dict[str, float]:
    """Decibels of a model against itself, with and without the runtime's optimizations."""
    from qtool.runtime import create_session
    from qtool.signal import sqnr_db

    plain, fast = (
        create_session(runnable, optimize=optimize, num_threads=num_threads, base_dir=base_dir)
        for optimize in (False, True)
    )
    found: dict[str, float] = {}
    for _, feeds in batches:
        expected, got = plain.run(feeds), fast.run(feeds)
        for name, y in expected.items():
            if getattr(y, "dtype", None) is not None and y.dtype.kind == "f":
                found[name] = min(found.get(name, float("inf")), sqnr_db(y, got[name]))
    return found


def _against(
    reference: ModelLike,
    models: Sequence[str | Path | onnx.ModelProto],
    batches: Sequence[tuple[int, Mapping[str, Any]]],
    num_threads: int | None,
    cleanup: ExitStack,
) -> dict[str, tuple[float, float]]:
    """Decibels of both models against the float model that they come from."""
    import numpy as np

    from qtool.runtime import create_session
    from qtool.signal import db, signal_and_noise

    exact = create_session(comparable(reference, cleanup), num_threads=num_threads)
    sessions = [create_session(m, num_threads=num_threads) for m in models]
    sums: dict[str, list[list[float]]] = {}
    for _, feeds in batches:
        expected = exact.run(feeds)
        for index, session in enumerate(sessions):
            got = session.run(feeds)
            for name, y in expected.items():
                if not isinstance(y, np.ndarray) or y.dtype.kind not in "fV":
                    continue
                if name not in got or got[name].shape != y.shape:
                    raise ModelError(f"The reference's output '{name}' is {list(y.shape)}; the model's is not.")
                total = sums.setdefault(name, [[0.0, 0.0] for _ in sessions])[index]
                for place, part in enumerate(signal_and_noise(y, got[name])):
                    total[place] += part
    return {name: (db(*pair[0]), db(*pair[1])) for name, pair in sums.items()}


def _reworded(message: str) -> str:
    """What publishing says of a quantized and a float model, of a converted one and its source."""
    return message.replace("quantized model", "converted model").replace("float model", "source model")


def _not_none(proto: onnx.ModelProto | None) -> onnx.ModelProto:
    assert proto is not None, "Bug: neither a file nor a model"
    return proto


def _number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)

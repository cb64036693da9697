"""prepare(): the float model in the form that quantization starts from, as a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.arguments import checked_arguments
from qtool.api.clock import Clock, peak_rss
from qtool.api.data import VERIFY_SAMPLES, VERIFY_SECONDS, files_of, first_batches
from qtool.api.made_up import random_feeds
from qtool.api.models import as_runnable, inputs_of
from qtool.api.results import PrepareResult
from qtool.api.settings import ModelLike, Progress, refuse_quantized
from qtool.deferred import later
from qtool.errors import ConfigError, VerificationError
from qtool.version import package_version

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.calibrate.samples import Data
else:
    Data = later("qtool.calibrate.samples", "Data")

# below this an output differs by more than the rounding of float32
_ROUNDING_DB = 60.0
_MIN_IR = 4  # initializers need not be graph inputs from here on
_DEFAULT_OPSET = 13  # of a model that uses no operator of ai.onnx


@checked_arguments
def prepare(
    model: ModelLike,
    calib: Data | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    opset: int | None = None,
    force: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> PrepareResult:
    """Write the float model that quantization starts from: folded, evaluated, named, with inferred shapes.

    The result computes the same up to the rounding of float32. It is checked, loaded, run and compared with the model
    before it is put in place.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; never changed.
        calib: Samples that the result is verified on, as for :func:`quantize`; by default random ones.
        output: Destination; by default ``<model>.prepared.onnx`` beside a model that is a file, and memory otherwise.
        opset: The lowest ``ai.onnx`` opset of the result; by default the opset is kept.
        force: Overwrite the output; accept a model that holds quantized operators already.
        num_threads: Threads of the runtime. Does not change the result.
        progress: Called with (stage, done, total).

    Returns:
        What was done. The model is in ``model_path``, or in ``model`` if there is no path.

    Raises:
        ConfigError: For a destination or an opset that cannot be used.
        ModelError: For a model that cannot be read, is quantized already, or cannot be raised to ``opset``.
        DataError: For samples that do not fit.
        VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
    """
    from qtool.plan.ops import handlers
    from qtool.prepare.graph_edits import ORIGIN_KEY
    from qtool.prepare.load import describe_source, load_model
    from qtool.prepare.prepare import prepare as prepare_model
    from qtool.publish import check_destination, default_prepared, publish

    clock = Clock(progress)
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    _check_opset(opset)
    with clock("prepare"):
        loaded = load_model(model)
        source = describe_source(model, loaded)
        destination = Path(output) if output is not None else None if path is None else default_prepared(path)
        if destination is not None:
            check_destination(destination, path, force=force, source_data=source.data_files, inputs=files_of(calib))
        refuse_quantized(loaded, force=force)
        given = _opset_of(loaded)
        prepared = prepare_model(
            loaded,
            min_opset=opset or given or _DEFAULT_OPSET,
            min_ir=_MIN_IR,
            bodies=True,
            inline=tuple(handlers()),
        )
        if prepared.obstacle is not None:
            raise prepared.obstacle
        for node in prepared.model.graph.all_nodes():
            node.metadata_props.pop(ORIGIN_KEY, None)
    notes: list[str] = []
    opened = None
    if calib is not None:
        from qtool.calibrate.samples import open_samples

        opened = open_samples(calib, inputs_of(loaded))
        notes += opened.notes

    def feeds(
        float_model: str | Path | onnx.ModelProto, base_dir: Path | None
    ) -> Iterable[tuple[int, Mapping[str, Any]]]:
        if opened is not None:
            return first_batches(opened, VERIFY_SAMPLES, VERIFY_SECONDS)
        batches, why_not = random_feeds(loaded, float_model, num_threads=num_threads, base_dir=base_dir)
        notes.extend([why_not] if why_not is not None else [])
        return batches

    record = {
        "version": package_version(),
        "source.sha256": source.sha256,
        "prepared": list(prepared.actions),
    }
    after = _node_count(prepared.model)
    with clock("verify"):
        float_model, base_dir, cleanup = as_runnable(model, loaded, prepared.model)
        try:
            published, proto = publish(
                prepared.model,
                float_model,
                feeds(float_model, base_dir),
                destination,
                provenance=record,
                external_data=bool(source.data_files),
                num_threads=num_threads,
                base_dir=base_dir,
                replace=force,
            )
        except VerificationError as error:
            raise VerificationError(error.message.replace("quantized", "prepared"), hint=error.hint) from error
        finally:
            cleanup()
    notes += [*published.notes, *_far_from_source(published.sqnr_db, made_up=opened is None)]
    return PrepareResult(
        model_path=published.path,
        model=proto,
        actions=prepared.actions,
        nodes_before=_node_count(loaded),
        nodes_after=after,
        opset_before=given,
        opset_after=_opset_of(prepared.model),
        bytes_before=source.nbytes,
        bytes_after=published.nbytes,
        sqnr_db=published.sqnr_db,
        verified_samples=published.samples,
        verified_on="random" if opened is None else "given",
        notes=list(dict.fromkeys(notes)),
        seconds=clock.seconds,
        peak_rss_bytes=peak_rss(),
    )


def _check_opset(opset: int | None) -> None:
    import onnx

    highest = onnx.defs.onnx_opset_version()
    if opset is not None and not 1 <= opset <= highest:
        raise ConfigError(f"Opset {opset} does not exist in onnx {onnx.__version__}; expected 1 to {highest}.")


def _opset_of(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 0))


def _node_count(model: ir.Model) -> int:
    """Nodes of the graph and of the bodies in it."""
    return sum(1 for _ in model.graph.all_nodes())


def _far_from_source(sqnr_db: Mapping[str, float], *, made_up: bool) -> Iterable[str]:
    hint = "Random samples may drive a model to where its output is all but 0: give real ones with --calib"
    for name, value in sqnr_db.items():
        if value < _ROUNDING_DB:
            yield (
                f"output '{name}' is {value:.1f} dB from the source model's, which is more than rounding. "
                f"{hint if made_up else 'Models that are random, or decide on the last bits of a number, do that'}."
            )

"""Running a model over samples and observing its tensors as they stream by.

The wanted tensors become further outputs of a copy of the model. A batch is run, its arrays are counted, and they are
dropped before the next batch: memory depends on the size of one batch, never on the number of samples.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from qtool.calibrate.samples import Samples
from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.calibrate.wanted import Wanted
from qtool.errors import ConfigError, DataError, ModelError
from qtool.runtime import Session, create_session

if TYPE_CHECKING:
    import onnx

# Batch size, measured on the zoo: batches that outgrow the caches are slower, and freed buffers of many megabytes leave
# holes that take some batches to fill up. Up to _FEW samples may fill the whole budget (weights are streamed once for
# all of them); more only share a quarter of it, where a run costs little beside its call.
MAX_BATCH_BYTES = 34 << 20
_FEW = 4
_MANY = 256
_OBSERVED = ("float32", "float16", "bfloat16")


def collect(
    model: onnx.ModelProto | str | PathLike[str],
    tensors: Sequence[str | Wanted],
    samples: Samples,
    *,
    histograms: bool = False,
    num_threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    batch_size: int | None = None,
    on_nan: Literal["raise", "skip"] = "raise",
    allow_inf: Collection[str] = (),
    initial: Statistics | None = None,
    checkpoint: Callable[[Statistics], None] | None = None,
    checkpoint_every: int | None = None,
) -> Statistics:
    """Observe tensors of a model.

    Args:
        model: A file or a proto; it is not changed. Inputs that are wanted are observed as they are fed.
        tensors: Float tensors of the top graph, by name or with what is wanted of them: inputs, node outputs, or
            initializers.
        samples: What to run it on.
        histograms: Whether to fill histograms, for range methods that need them.
        num_threads: Threads of an operator and of the counting kernels.
        progress: Called with (samples done, samples in all) after every batch.
        max_batch_bytes: Bytes of observed arrays of one batch to aim at; one sample is always run.
        batch_size: Largest number of samples in a batch; by default as many as ``max_batch_bytes`` allows.
        on_nan: ``skip`` counts NaNs and infinities instead of raising.
        allow_inf: Tensors in which infinities are expected (attention masks); they are counted, not part of the range.
        initial: Statistics of samples that were run before; the result is that of these and of ``samples``.
        checkpoint: Called with the statistics so far whenever at least ``checkpoint_every`` samples have been run
            since the last call.
        checkpoint_every: A number of samples.

    Returns:
        Statistics in the order of ``tensors``.

    Raises:
        ConfigError: If a tensor does not exist in the top graph.
        ModelError: If the model does not load, or a wanted tensor is not of a float type.
        DataError: If the model does not run on a sample, or a tensor holds NaN or (unless allowed) an infinity.
    """
    wanted = {one.name: one for one in (Wanted(t) if isinstance(t, str) else t for t in tensors)}
    statistics = {name: TensorStatistics.empty(histogram=histograms, wanted=one) for name, one in wanted.items()}
    session, computed, fed = _observing_session(model, list(wanted), num_threads)
    done = saved = 0
    # A thread per tensor instead of all threads on one: a pool that spins beside onnxruntime's slows both down.
    with ThreadPoolExecutor(num_threads or _available_cores()) as pool:
        for rows, arrays in _observed_batches(session, computed, fed, samples, max_batch_bytes, batch_size):
            before = {name: (one.nan, one.pos_inf + one.neg_inf) for name, one in statistics.items()}

            def count(name: str, seen: npt.NDArray[Any], rows: int = rows) -> None:
                # an array whose leading axis does not hold the samples is the same for each of them
                shared = rows > 1 and (seen.ndim == 0 or seen.shape[0] % rows > 0)
                statistics[name].update(seen, rows=rows, shared=shared, num_threads=1)

            for _ in pool.map(count, arrays, arrays.values()):
                pass
            if on_nan == "raise":
                for name, one in statistics.items():
                    nan, infinite = before[name]
                    infinite = 0 if name in allow_inf else one.pos_inf + one.neg_inf - infinite
                    _refuse_non_finite(name, one.nan - nan, infinite, done, rows)
            arrays.clear()  # before the next batch is run, not after
            done += rows
            if progress is not None:
                progress(done, samples.count)
            if checkpoint is not None and done - saved >= (checkpoint_every or 1) and done < samples.count:
                saved = done
                checkpoint(_continued(initial, statistics, done))
    return _continued(initial, statistics, done)


def _continued(initial: Statistics | None, statistics: Mapping[str, TensorStatistics], done: int) -> Statistics:
    found = Statistics(dict(statistics), done)
    return found if initial is None else found.merged(initial)


def _observed_batches(
    session: Session | None,
    computed: Sequence[str],
    fed: Sequence[str],
    samples: Samples,
    max_batch_bytes: int,
    batch_size: int | None,
) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
    """Run all samples; yield the number of samples and the wanted tensors of each batch.

    The first samples are run in the smallest batch there is, to learn how many bytes a sample takes. If larger batches
    follow, they start over: one sample is run twice, but all batches have one shape. Cutting it out would give a first
    batch of another size, for which onnxruntime's arena would keep buffers of their own.
    """

    def observed(feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        return {name: feeds[name] for name in fed} | (session.run(feeds, computed) if session else {})

    batches = samples.counted_batches(None)
    rows, feeds = next(batches)
    arrays = observed(feeds)
    nbytes = sum(array.nbytes for array in arrays.values()) + sum(array.nbytes for array in feeds.values())
    size = (batch_size or _batch_size(nbytes / rows, max_batch_bytes)) if samples.batchable else 1
    if size > rows:
        batches = samples.counted_batches(size)
    else:
        yield rows, arrays
    del arrays
    for rows, feeds in batches:
        yield rows, observed(feeds)


def _batch_size(sample_bytes: float, max_batch_bytes: int) -> int:
    fitting = max_batch_bytes / max(sample_bytes, 1.0)
    return max(1, min(int(fitting), max(_FEW, int(fitting / 4)), _MANY))


def _observing_session(
    model: onnx.ModelProto | str | PathLike[str], wanted: Sequence[str], num_threads: int | None
) -> tuple[Session | None, list[str], list[str]]:
    """A session with the wanted tensors among its outputs, which of them it computes, and which are fed.

    If all of them are fed, there is nothing to run and no session.
    """
    import onnx

    if isinstance(model, onnx.ModelProto):
        proto, base_dir = model, None
    else:
        path = Path(fspath(model))
        try:
            proto, base_dir = onnx.load(path, load_external_data=False), path.resolve().parent
        except Exception as error:  # OSError, or protobuf's DecodeError
            raise ModelError(f"Model '{path}' cannot be read: {' '.join(str(error).split())[:200]}.") from error
    computed, fed = _tensors(proto.graph, wanted)
    present = {value.name for value in proto.graph.output}
    extra = onnx.ModelProto()
    for name in computed:
        if name not in present:
            # a name is all that onnxruntime needs: it infers type and shape itself
            extra.graph.output.add().name = name
    if not computed:
        return None, computed, fed
    try:
        # concatenated protobuf messages are one merged message: the copy with more outputs, without parsing the weights
        serialized = proto.SerializeToString() + extra.SerializeToString()
    except Exception as error:  # protobuf raises EncodeError or ValueError, by implementation
        raise ModelError(
            "The model is larger than 2 GB, which a protobuf message cannot be.",
            hint="Save it with external data and give the path of the file.",
        ) from error
    if base_dir is None:
        _require_embedded(proto)
    session = create_session(serialized, num_threads=num_threads, base_dir=base_dir)
    for info in session.outputs:
        if info.name in computed and info.dtype.name not in _OBSERVED:
            raise ModelError(
                f"Tensor '{info.name}' is {info.dtype.name}; expected a type that has a range: {', '.join(_OBSERVED)}."
            )
    return session, computed, fed


def _tensors(graph: onnx.GraphProto, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the wanted tensors into those that the model computes and those that are fed.

    Raises:
        ConfigError: If one is neither.
    """
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = {value.name for value in graph.input} - initializers
    known = inputs | initializers | {name for node in graph.node for name in node.output if name}
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            raise ConfigError(
                f"The model's graph has no tensor '{name}'.",
                hint=f"Did you mean {' or '.join(repr(n) for n in near)}?"
                if near
                else "Only tensors of the top graph can be observed, not those inside If or Loop bodies.",
            )
    return [name for name in wanted if name not in inputs], [name for name in wanted if name in inputs]


def _require_embedded(proto: onnx.ModelProto) -> None:
    from onnx.external_data_helper import uses_external_data

    for tensor in proto.graph.initializer:
        if uses_external_data(tensor):
            raise ModelError(
                f"The model keeps '{tensor.name}' in an external file, and its folder is not known.",
                hint="Give the path of the model file instead of the loaded proto.",
            )


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _refuse_non_finite(name: str, nan: int, infinite: int, done: int, rows: int) -> None:
    """Raise for NaNs or infinities in a tensor.

    Raises:
        DataError: Naming the tensor, how many there are, and the samples.
    """
    if not nan and not infinite:
        return
    what = " and ".join(f"{n} {text}" for n, text in ((nan, "NaN"), (infinite, "infinite")) if n)
    where = f"sample {done}" if rows == 1 else f"samples {done} to {done + rows - 1}"
    raise DataError(
        f"Tensor '{name}' has {what} values in {where}; expected finite ones.",
        hint="Look for samples that the model was not made for; a range cannot be taken from them.",
    )

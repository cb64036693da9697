"""Samples as callers give them: where they come from, which are observed, and which a result is verified on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.models import as_proto
from qtool.errors import ConfigError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.calibrate.samples import Data, Samples
    from qtool.calibrate.statistics import Statistics
    from qtool.calibrate.wanted import Wanted
    from qtool.runtime import TensorInfo

# Samples of the calibration data on which the result is run beside the float model before it is put in place: up to
# this many, and no further one once that has taken this long.
VERIFY_SAMPLES = 4
VERIFY_SECONDS = 1.5
# Bytes of constants up to which the model is collected from without a temporary file of its weights.
_IN_MEMORY = 4 << 20


def refuse_several(**origins: object) -> None:
    """Ranges come from one place."""
    names = {"calib": "calibration data", "stats": "a statistics file", "random_calib": "random calibration"}
    given = [names[name] for name, value in origins.items() if value is not None]
    if len(given) > 1:
        first, *rest = given
        raise ConfigError(f"{first[0].upper()}{first[1:]} and {' and '.join(rest)} are given; expected one of them.")


def refuse_choice(calib: object, samples: int | None, shuffle: int | None, *, hint: str) -> None:
    """Only data have samples to choose from."""
    given = [name for name, value in (("number of samples", samples), ("shuffle", shuffle)) if value is not None]
    if given and calib is None:
        raise ConfigError(f"A {given[0]} is given without calibration data to choose from.", hint=hint)


def files_of(*data: object) -> list[Path]:
    """The files among what was given as data, with those of folders and globs."""
    from qtool.calibrate import readers

    return readers.files_of(*data)


def open_any(
    calib: Data | None,
    random_calib: int | None,
    inputs: tuple[TensorInfo, ...],
    *,
    limit: int | None = None,
    shuffle_seed: int | None = None,
) -> Samples:
    """Samples from data, chosen by ``limit`` and ``shuffle_seed``, or random ones.

    Raises:
        ConfigError: If neither is given: random data are never a silent stand-in.
    """
    from qtool.calibrate.samples import open_samples, random_samples

    if random_calib is not None:
        return random_samples(inputs, random_calib)
    if calib is None:
        raise ConfigError(
            "Quantizing activations needs calibration data, and none was given.",
            hint="Pass samples with --calib DATA.npz, or what 'qtool calibrate' saved with --stats STATS.npz; "
            "--random-calib N tries the model out on random values.",
        )
    return open_samples(calib, inputs, limit=limit, shuffle_seed=shuffle_seed)


def observe(
    model: ir.Model, tensors: Sequence[Wanted], samples: Samples, *, lend: bool = False, **options: Any
) -> Statistics:
    """Statistics of the wanted tensors; infinities are counted here and judged by the plan.

    Args:
        model: The prepared model.
        tensors: What is wanted.
        samples: What to run it on.
        lend: The model is the caller's own, and its weights may leave the memory: from then on they are read from the
            file that is written for the runtime anyway.
        **options: Of :func:`qtool.calibrate.collect.collect`.
    """
    from qtool.calibrate.collect import collect
    from qtool.calibrate.statistics import Statistics
    from qtool.prepare.expose_branches import expose_branches
    from qtool.prepare.file_weights import move_to_file, supported
    from qtool.runtime.lean import release

    if not tensors:  # weights only: nothing to run
        return Statistics({}, 0)
    exposed = expose_branches(model, [one.name for one in tensors])
    if exposed is not model:
        options["batch_size"] = 1  # which branch is taken may depend on the values that share a batch
    with runnable_proto(exposed) as proto:
        if lend and isinstance(proto, Path) and supported():
            for one in {id(one): one for one in (exposed, model)}.values():
                move_to_file(one, proto)
            release(cycles=False)
        return collect(proto, tensors, samples, allow_inf=[one.name for one in tensors], **options)


@contextmanager
def runnable_proto(model: ir.Model) -> Iterator[onnx.ModelProto | Path]:
    """A form of a model that is run in segments: a proto, or a temporary file whose weights are read as needed."""
    proto, _, cleanup = as_proto(model, _IN_MEMORY)
    try:
        yield proto
    finally:
        cleanup()


def first_batches(samples: Samples, count: int, seconds: float) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Batches of the first samples, the smallest there are; at least one, no further one after some seconds."""
    done, start = 0, time.perf_counter()
    for rows, feeds in samples.counted_batches(None):
        yield rows, feeds
        done += rows
        if done >= count or time.perf_counter() - start > seconds:
            return

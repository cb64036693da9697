"""How much memory do the two models take to load and to run?

Each model runs in a process of its own, which knows nothing but onnxruntime and the samples of one batch. The figure is
the peak of the process minus what it held before it opened the model, so what Python and libraries take is in neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.errors import ModelError
from qtool.evaluate.checks.result import CheckResult, counted
from qtool.evaluate.checks.subject import Model, Subject
from qtool.runtime.custom_ops import custom_op_libraries

if TYPE_CHECKING:
    import numpy.typing as npt

NAME, TITLE = "memory", "Peak memory of each model, beyond the process that runs it"

_TIMEOUT = 600.0
_RUNS = 3


def check(subject: Subject) -> CheckResult:
    """Load and run both models on the first batch, each in its own process."""
    count, feeds = next(subject.first(subject.batch_size).counted_batches(subject.batch_size))
    peaks = {}
    with tempfile.TemporaryDirectory(prefix="qtool-") as folder:
        for name, model in (("float", subject.float_model), ("quantized", subject.quant_model)):
            try:
                peaks[name] = measured_peak(model, feeds, subject.num_threads, Path(folder))
            except ModelError as error:
                return CheckResult(NAME, TITLE, "skipped", f"The {name} model: {error.message}")
    before, after = peaks["float"], peaks["quantized"]
    ratio = before / after if after else None
    values: dict[str, bool | int | float | str | None] = {
        "float_bytes": before,
        "quantized_bytes": after,
        "ratio": ratio,
        "batch_size": count,
        "threads": subject.num_threads,
    }
    summary = f"{before / 1e6:.1f} MB in float, {after / 1e6:.1f} MB quantized (batch of {counted(count, 'sample')})."
    return CheckResult(NAME, TITLE, "ok", summary, values=values, samples=count)


def measured_peak(model: Model, feeds: dict[str, npt.NDArray[Any]], num_threads: int | None, folder: Path) -> int:
    """Bytes that loading a model and running it takes beyond what its process held before.

    Args:
        model: A path, or a model without external data.
        feeds: Inputs of a run.
        num_threads: Threads of the session.
        folder: For files on the way.

    Raises:
        ModelError: If the model does not load or run there.
    """
    import numpy as np

    path = model if isinstance(model, Path) else folder / "model.onnx"
    if not isinstance(model, Path):
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    arrays = {}
    names = []
    for at, (name, array) in enumerate(feeds.items()):  # input names may hold anything; names in an archive may not
        if array.dtype.kind in "OUT":
            names.append([name, "text"])
            arrays[f"a{at}"] = array.astype("U")
            continue
        names.append([name, array.dtype.name])
        plain = array.dtype.kind in "fiub"
        arrays[f"a{at}"] = array if plain else array.view(np.dtype(f"u{array.dtype.itemsize}"))
    with (folder / "feeds.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    request = {
        "model": str(path),
        "feeds": str(folder / "feeds.npz"),
        "names": names,
        "threads": num_threads,
        "custom_ops": custom_op_libraries(),
    }
    package = Path(__file__).parents[3]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), environment.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qtool.runtime.measure_memory", str(_RUNS)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"The process that measures memory did not end: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ModelError(f"The process that measures memory failed: {lines[-1] if lines else done.returncode}")
    return int(json.loads(done.stdout)["bytes"])

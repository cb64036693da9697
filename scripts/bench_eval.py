"""``qtool eval --layers`` against plain inference: time, and memory beyond that of the loaded models.

    QTOOL_ZOO=DIR python scripts/bench_eval.py [--work FOLDER] [MODEL ...]

Every figure is that of a process of its own. Plain inference is that of the float and the quantized model in
onnxruntime as it is by default, on all samples of the evaluation, one at a time and in batches of 8; the faster one is
the measure. "In turn", both models run on a batch before the next; "apart", one after the other on all of them, which
is faster, as threads of one session still spin when the other starts. The ratios are --layers to either. Time of
``qtool eval`` is that of ``evaluate()`` with the quick checks, without the start of Python.

A second line has whole processes, start and end of Python included: one that does nothing but import onnxruntime and
NumPy, load both models and run them on the same samples in turn, and the command ``qtool eval --layers``. Its ratios
are those of the command to that process, and to the loop "in turn" alone. Memory is the peak of the
process minus what it holds once both models are loaded, which a process that only loads them tells. Quantized models
are made with the defaults, in FOLDER if it has none of them yet. Linux only: the peak is that of /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = ("efficientnet_lite0", "minilm_l6_v2")
PLAIN = """
import json, sys, time
from pathlib import Path
import onnx, onnx_ir
from qtool.api import evaluate
from qtool.calibrate.samples import open_samples
from qtool.api.models import interface_of
from qtool.runtime.measure_memory import resident
import onnxruntime
sessions = [onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in sys.argv[1:3]]
loaded = resident("VmHWM")
samples = open_samples(sys.argv[3], interface_of(sys.argv[1]))
in_turn, apart = [], []
for size in (1, 8):
    for session in sessions:
        session.run(None, next(samples.batches(size)))
    start = time.perf_counter()
    for feeds in samples.batches(size):
        for session in sessions:
            session.run(None, feeds)
    in_turn.append(time.perf_counter() - start)
    apart.append(0.0)
    for session in sessions:
        start = time.perf_counter()
        for feeds in samples.batches(size):
            session.run(None, feeds)
        apart[-1] += time.perf_counter() - start
print(json.dumps([min(in_turn), min(apart), loaded]))
"""
EVAL = """
import json, sys, time
import onnx, onnx_ir, onnxruntime
from qtool.api import evaluate
from qtool.runtime.measure_memory import resident
start = time.perf_counter()
evaluate(*sys.argv[1:4], layers=sys.argv[4] == "layers")
print(json.dumps([time.perf_counter() - start, resident("VmHWM")]))
"""
LOOP = """
import sys
import numpy as np
import onnxruntime
sessions = [onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in sys.argv[1:3]]
with np.load(sys.argv[3]) as archive:
    arrays = {value.name: archive[value.name] for value in sessions[0].get_inputs()}
for row in range(len(next(iter(arrays.values())))):
    for session in sessions:
        session.run(None, {name: array[row : row + 1] for name, array in arrays.items()})
"""


def whole(*command: object) -> float:
    """Seconds of a process from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def command(model: Path, other: Path, data: Path) -> list[object]:
    """Arguments of Python that look at the layers of a pair."""
    return ["-m", "qtool", "eval", model, other, "--data", data, "--layers", "-q"]


def measured(program: str, *arguments: object) -> list[float]:
    """Seconds, and bytes at the end, that a program prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers: list[float] = json.loads(found)
    return numbers


def quantized(model: Path, calib: Path, folder: Path) -> Path:
    """The model's int8 form, made if it is not there."""
    target = folder / f"{model.stem}.q.onnx"
    if not target.exists():
        command = [sys.executable, "-m", "qtool", "quantize", model, "--calib", calib, "-o", target, "-q"]
        subprocess.run(command, check=True)
    return target


def main() -> None:
    """Measure models of the zoo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where quantized models are, and stay")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="measure N times in turn; show medians")
    options = parser.parse_args()
    zoo = Path(os.environ["QTOOL_ZOO"])
    print(
        f"{'model':20}{'in turn':>9}{'apart':>9}{'eval':>9}{'--layers':>10}{'ratio':>7}{'ratio':>7}"
        f"{'loaded':>9}{'eval':>9}{'--layers':>10}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models:
            model = zoo / f"{name}.onnx"
            other = quantized(model, zoo / f"{name}_calib.npz", options.work or Path(scratch))
            pair = model, other, zoo / f"{name}_eval.npz"
            rounds = [
                [
                    *measured(PLAIN, *pair),
                    *measured(EVAL, *pair, "usual"),
                    *measured(EVAL, *pair, "layers"),
                    whole("-c", LOOP, *pair),
                    whole(*command(*pair)),
                ]
                for _ in range(options.rounds)
            ]
            in_turn, apart, loaded, usual, peak, layers, highest, loop, asked = (
                statistics.median(column) for column in zip(*rounds, strict=True)
            )
            ratios = [statistics.median(row[5] / row[at] for row in rounds) for at in (0, 1)]
            beside = [statistics.median(row[8] / row[at] for row in rounds) for at in (7, 0)]
            print(
                f"{name:20}{in_turn:7.2f} s{apart:7.2f} s{usual:7.2f} s{layers:8.2f} s"
                f"{ratios[0]:6.1f}x{ratios[1]:6.1f}x"
                f"{loaded / 1e6:6.0f} MB{(peak - loaded) / 1e6:+6.0f} MB{(highest - loaded) / 1e6:+7.0f} MB",
                flush=True,
            )
            print(
                f"{'  whole processes':20}{loop:7.2f} s{'':18}{asked:8.2f} s{beside[0]:6.1f}x{beside[1]:6.1f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Calibration of qtool against onnxruntime's calibrators: whole processes, from the model file to the ranges.

Part of ``bench_quantize.py --calibration``. Each tool has one process per method. That of qtool is the command
``qtool calibrate --method NAME``, statistics file included, and then the ranges of every tensor, derived from that
file; the peer feeds the same samples, one at a time, to ``onnxruntime.quantization.calibrate`` and asks for the ranges
of the tensors of the same operators. The model of both is the one that each tool's own preparation makes. Processes of
both run from compiled modules, as installed packages do; the first run, which may compile them, is not counted.

Collection is the stage ``calibrate`` of that command: from the first counted sample to the statistics, reading the
samples included; loading the model is the stage ``load`` before it. Bare inference is that of onnxruntime as it is by
default, on the same samples, one at a time, all of them in memory, after a first one that is not counted; and once more
with each read from its file before it is run, as collection has to. The two run in turn, as often as each other, and
the ratios are those of medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("efficientnet_lite0", "minilm_l6_v2", "whisper_tiny_en_encoder", "ppocr_det", "resnet")
METHODS = ("minmax", "percentile", "entropy")
QUICK = {"efficientnet_lite0": 8, "minilm_l6_v2": 16, "whisper_tiny_en_encoder": 2, "ppocr_det": 2, "resnet": 16}
PEER_SECONDS = 300

PEER = """
import sys
import numpy as np, onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import create_calibrator
from onnxruntime.quantization.shape_inference import quant_pre_process
model, calib, count, method, scratch = sys.argv[1:6]
class Reader(CalibrationDataReader):
    def __init__(self):
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
        self.data = np.load(calib)
        arrays = {i.name: self.data[i.name].astype(types[i.type]) for i in session.get_inputs()}
        self.samples = iter([{k: v[n:n + 1] for k, v in arrays.items()} for n in range(int(count))])
    def get_next(self):
        return next(self.samples, None)
quant_pre_process(model, scratch + "/pre.onnx", skip_symbolic_shape=True)
operators = ["Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Mul", "AveragePool", "GlobalAveragePool", "MaxPool",
             "Resize", "Concat", "Sigmoid", "Softmax", "Relu", "Clip"]
options = {"percentile": 99.999} if method == "percentile" else {}
calibrator = create_calibrator(scratch + "/pre.onnx", operators, scratch + "/augmented.onnx",
                               calibrate_method=CalibrationMethod[{"minmax": "MinMax", "percentile": "Percentile",
                               "entropy": "Entropy"}[method]], extra_options=options)
calibrator.collect_data(Reader())
print(len(calibrator.compute_data().data))
"""
OURS = """
import sys
from qtool.__main__ import main
model, calib, count, spec, stats, report = sys.argv[1:7]
code = main(["calibrate", model, "--data", calib, "--samples", count, "--method", spec, "-o", stats,
             "--json", report, "--force", "-q"])
if code:
    sys.exit(code)
from qtool.calibrate.methods import parse_method
from qtool.calibrate.statsfile import load_statistics
from qtool.dtypes import qdtype
method, parameter = parse_method(spec)
ranges = [method.range_of(one, qdtype("uint8"), symmetric=False, parameter=parameter)
          for one in load_statistics(stats).statistics.values() if one.finite]
print(len(ranges))
"""
BARE = """
import sys, time
from qtool.calibrate.samples import open_samples
from qtool.runtime import create_session
session = create_session(sys.argv[1])
feeds = []
for one in open_samples(sys.argv[2], session.inputs, limit=int(sys.argv[3])).batches():
    feeds.append({name: array.copy() for name, array in one.items()})
session.run(feeds[0])
start = time.perf_counter()
for one in feeds:
    session.run(one)
bare = time.perf_counter() - start
samples = open_samples(sys.argv[2], session.inputs, limit=int(sys.argv[3]))
start = time.perf_counter()
for one in samples.batches():
    session.run(one)
print(bare, time.perf_counter() - start, sep=",")
"""


def compare(zoo: Path, names: str | None, methods: str | None, runs: int, *, quick: bool) -> list[dict[str, Any]]:
    """All figures, printed as they come.

    Args:
        zoo: Folder of models and samples.
        names: Comma-separated models; all by default.
        methods: Comma-separated range methods; all three by default.
        runs: Runs of qtool, and of bare inference; of the peer, which may take minutes, one.
        quick: Few samples.
    """
    rows = []
    with tempfile.TemporaryDirectory() as scratch, _compiled(Path(scratch)):
        for name in names.split(",") if names else MODELS:
            if name == "resnet":
                model, calib = _resnet(Path(scratch))
            else:
                model, calib = zoo / f"{name}.onnx", zoo / f"{name}_calib.npz"
            with np.load(calib) as data:
                count = len(data[data.files[0]])
            count = min(count, QUICK[name]) if quick else count
            chosen = methods.split(",") if methods else METHODS
            rows += _model(name, model, calib, count, chosen, runs, Path(scratch))
    return rows


def _model(
    name: str, model: Path, calib: Path, count: int, methods: Sequence[str], runs: int, scratch: Path
) -> list[dict[str, Any]]:
    from bench_quantize import run

    stats, report = scratch / "stats.npz", scratch / "report.json"
    _output([sys.executable, "-c", OURS, str(model), str(calib), "1", "minmax", str(stats), str(report)])
    bare_command = [sys.executable, "-c", BARE, str(model), str(calib), str(count)]
    print(f"{name}: {count} samples", flush=True)
    rows = []
    for method in methods:
        command = [sys.executable, "-c", OURS, str(model), str(calib), str(count), method, str(stats), str(report)]
        peer_command = [sys.executable, "-c", PEER, str(model), str(calib), str(count), method, str(scratch)]
        ours, collected, bares, readings = [], [], [], []
        for _ in range(runs):
            alone, reading = map(float, _output(bare_command).split(","))
            bares.append(alone)
            readings.append(reading)
            ours.append(run(command))
            if ours[-1]["failed"]:
                print(f"  {method:<11} qtool failed: {ours[-1]['failed']}", flush=True)
                return rows
            collected.append(json.loads(report.read_text())["seconds"]["calibrate"])
        peer = run_limited(peer_command)
        seconds, collecting = statistics.median(one["seconds"] for one in ours), statistics.median(collected)
        bare, reading = statistics.median(bares), statistics.median(readings)
        peak = max(one["peak_mb"] for one in ours)
        row = {"model": name, "method": method, "samples": count, "seconds": seconds, "peak_mb": peak, "peer": peer}
        rows.append(row | {"bare_seconds": bare, "bare_reading_seconds": reading, "collect_seconds": collecting})
        text = f"  {method:<11} qtool {seconds:7.2f} s {peak:6d} MB   onnxruntime {peer['seconds']:7.2f} s "
        text += f"{peer['peak_mb']:6d} MB   "
        if peer["failed"]:
            text += f"failed: {peer['failed']}"
        else:
            text += f"{peer['seconds'] / seconds:5.2f}x as fast, {peak / peer['peak_mb']:.2f} of the memory"
        text += f"   collection {collecting:.2f} s, {collecting / bare:.2f}x of bare {bare:.2f} s"
        print(f"{text}, {collecting / reading:.2f}x of {reading:.2f} s with the samples read", flush=True)
    return rows


@contextmanager
def _compiled(scratch: Path) -> Iterator[None]:
    """Let the processes started inside find compiled modules, whatever the environment says of writing them."""
    changed = {"PYTHONDONTWRITEBYTECODE": ""}
    changed["PYTHONPYCACHEPREFIX"] = os.environ.get("PYTHONPYCACHEPREFIX", str(scratch / "compiled"))
    before = {key: os.environ.get(key) for key in changed}
    os.environ |= changed
    try:
        imports = "import onnxruntime.quantization.calibrate, onnxruntime.quantization.shape_inference"
        subprocess.run([sys.executable, "-c", imports], check=True, capture_output=True)
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key)
            else:
                os.environ[key] = value


def run_limited(command: list[str]) -> dict[str, Any]:
    """A peer's run, given up after some minutes."""
    from bench_quantize import run

    return run(["timeout", str(PEER_SECONDS), *command])


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def _resnet(folder: Path, count: int = 200) -> tuple[Path, Path]:
    """A residual network like ResNet-18 for images of 128 x 128, with random weights, and samples for it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights = [], []

    def conv(source: str, target: str, inputs: int, outputs: int, size: int, stride: int) -> str:
        scale = np.sqrt(2.0 / (inputs * size * size))
        weight = (random.standard_normal((outputs, inputs, size, size)) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{target}.w"))
        weights.append(numpy_helper.from_array(np.zeros(outputs, np.float32), f"{target}.b"))
        nodes.append(
            helper.make_node(
                "Conv", [source, f"{target}.w", f"{target}.b"], [target], target, pads=[size // 2] * 4,
                strides=[stride] * 2,
            )
        )  # fmt: skip
        return target

    def relu(source: str) -> str:
        nodes.append(helper.make_node("Relu", [source], [f"{source}.r"], f"{source}.r"))
        return f"{source}.r"

    value = relu(conv("x", "stem", 3, 64, 7, 2))
    nodes.append(helper.make_node("MaxPool", [value], ["pool"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]))
    value, width = "pool", 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            label = f"s{stage}b{block}"
            inner = conv(
                relu(conv(value, f"{label}c0", width, outputs, 3, stride)), f"{label}c1", outputs, outputs, 3, 1
            )
            skip = value if stride == 1 and width == outputs else conv(value, f"{label}s", width, outputs, 1, stride)
            nodes.append(helper.make_node("Add", [inner, skip], [f"{label}a"], f"{label}a"))
            value, width = relu(f"{label}a"), outputs
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["gap"]))
    nodes.append(helper.make_node("Flatten", ["gap"], ["flat"]))
    weights.append(numpy_helper.from_array((random.standard_normal((512, 100)) / 20).astype(np.float32), "fc"))
    nodes.append(helper.make_node("MatMul", ["flat", "fc"], ["y"], "fc"))
    graph = helper.make_graph(
        nodes, "resnet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 128, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 100])],
        weights,
    )  # fmt: skip
    path, calib = folder / "resnet.onnx", folder / "resnet_calib.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(calib, x=random.standard_normal((count, 3, 128, 128), dtype=np.float32))
    return path, calib

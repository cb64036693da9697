"""Compare qtool with onnxruntime's own static quantizer on the zoo: time and memory of the tool, latency of the models.

    python scripts/bench_quantize.py                              every model of the zoo, both formats
    python scripts/bench_quantize.py --models digits_vit --runs 5 --json out.json
    python scripts/bench_quantize.py --memory                     peak memory of 16 against 256 samples
    python scripts/bench_quantize.py --calibration [--quick]      calibration against onnxruntime's calibrators

Tools run as whole processes, in turn, and the median is taken. Models run in one process, in turn, a few calls each, of
which the first is not counted (it finds the caches full of another model); a latency is the median of the counted calls
and a ratio is one of medians. Peers fail on some models: that is printed.
The zoo is the folder that QTOOL_ZOO names.
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
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
ZOO = Path(os.environ.get("QTOOL_ZOO", REPOSITORY.parent / "shared" / "zoo"))
FORMATS = ("qlinear", "qdq")
CALLS = 3  # counted calls of a model in a round
# samples of one latency run, as the zoo's own scorer takes them
BATCH = {
    "mnist_cnn": 1, "digits_resnet_bn": 100, "digits_vit": 100, "efficientnet_lite0": 8, "ppocr_cls": 16,
    "ppocr_det": 1, "magika": 32, "minilm_l6_v2": 25, "whisper_tiny_en_encoder": 1, "chargpt_llama": 16,
}  # fmt: skip

# uint8 activations, int8 per-channel weights, min-max, after the recommended pre-processing: the peer's usual recipe
PEER = """
import sys
import numpy as np, onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
model, calib, out = sys.argv[1:4]
class Reader(CalibrationDataReader):
    def __init__(self):
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
        data = np.load(calib)
        arrays = {i.name: data[i.name].astype(types[i.type]) for i in session.get_inputs()}
        stacked = {i.name: arrays[i.name].ndim > len(i.shape) for i in session.get_inputs()}
        count = len(next(iter(arrays.values())))
        self.samples = iter([{k: v[n] if stacked[k] else v[n:n + 1] for k, v in arrays.items()} for n in range(count)])
    def get_next(self):
        return next(self.samples, None)
quant_pre_process(model, out + ".pre", skip_symbolic_shape=True)
quantize_static(out + ".pre", out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax)
"""
# reports the child's own peak, not that of the largest child so far
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print("PEAK", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
sys.exit(code)
"""


def run(command: list[str]) -> dict[str, Any]:
    """Run a command once: seconds, peak megabytes, and what it said last if it failed."""
    start = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    lines = [line for line in (ended.stderr + ended.stdout).splitlines() if line.strip()]
    peak = next((int(line.split()[1]) for line in reversed(lines) if line.startswith("PEAK ")), 0)
    said = next((line for line in lines if line.startswith("error:")), lines[-2] if len(lines) > 1 else "")
    return {"seconds": seconds, "peak_mb": peak, "failed": said[:120] if ended.returncode else None}


def commands(name: str, folder: Path, formats: list[str]) -> dict[str, tuple[list[str], Path]]:
    """Tool -> (command, file that it writes)."""
    model, calib = ZOO / f"{name}.onnx", ZOO / f"{name}_calib.npz"
    peer = folder / f"{name}.ort.onnx"
    found = {"onnxruntime": ([sys.executable, "-c", PEER, str(model), str(calib), str(peer)], peer)}
    for form in formats:
        path = folder / f"{name}.{form}.onnx"
        options = ["--calib", str(calib), "-o", str(path), "--format", form, "--force", "-q"]
        found[form] = ([sys.executable, "-m", "qtool", "quantize", str(model), *options], path)
    return found


def latencies(name: str, paths: dict[str, Path], seconds: float) -> dict[str, float]:
    """Median milliseconds of one call of each model, interleaved by rounds of a few calls, on one thread."""
    from qtool.calibrate.samples import open_samples
    from qtool.runtime import create_session

    sessions = {who: create_session(path, num_threads=1) for who, path in paths.items()}
    inputs = sessions["float"].inputs
    samples = open_samples(ZOO / f"{name}_eval.npz", inputs)
    feeds = next(iter(samples.batches(BATCH.get(name, 1))))
    times: dict[str, list[float]] = {who: [] for who in sessions}
    for session in sessions.values():
        session.run(feeds)
    end = time.perf_counter() + seconds * len(sessions)
    while time.perf_counter() < end or len(times["float"]) < 5:
        for who, session in sessions.items():
            session.run(feeds)
            for _ in range(CALLS):
                start = time.perf_counter()
                session.run(feeds)
                times[who].append(time.perf_counter() - start)
    return {who: 1e3 * statistics.median(values) for who, values in times.items()}


def benchmark(name: str, formats: list[str], runs: int, seconds: float) -> dict[str, Any]:
    """All figures of one model."""
    with tempfile.TemporaryDirectory() as scratch:
        tools = commands(name, Path(scratch), formats)
        done: dict[str, list[dict[str, Any]]] = {who: [] for who in tools}
        for _ in range(runs):
            for who, (command, _) in tools.items():
                if not done[who] or done[who][-1]["failed"] is None:
                    done[who].append(run(command))
        row: dict[str, Any] = {"model": name, "tools": {}}
        for who, results in done.items():
            row["tools"][who] = {
                "seconds": statistics.median(r["seconds"] for r in results),
                "peak_mb": max(r["peak_mb"] for r in results),
                "failed": results[-1]["failed"],
            }
        paths = {"float": ZOO / f"{name}.onnx"}
        for who, (_, path) in tools.items():
            if path.exists():
                try:
                    _loads(path)
                    paths[who] = path
                except Exception as error:  # whatever a peer's file does when it is loaded is a result here
                    row["tools"][who]["failed"] = f"does not load: {str(error)[:100]}"
        row["latency_ms"] = latencies(name, paths, seconds)
    return row


def _loads(path: Path) -> None:
    from qtool.runtime import create_session

    create_session(path, num_threads=1)


def show(row: dict[str, Any]) -> None:
    """One block of text a model."""
    latency = row["latency_ms"]
    peer = row["tools"]["onnxruntime"]
    print(f"{row['model']}  float {latency['float']:.2f} ms")
    for who, figures in row["tools"].items():
        text = f"  {who:<12} tool {figures['seconds']:6.2f} s  {figures['peak_mb']:5d} MB"
        if figures["failed"]:
            print(f"{text}  failed: {figures['failed']}")
            continue
        text += f"  model {latency[who]:8.2f} ms  {latency['float'] / latency[who]:.2f}x of float"
        if who != "onnxruntime" and not peer["failed"]:
            text += f", {latency['onnxruntime'] / latency[who]:.2f}x of onnxruntime's"
            text += f"; tool {peer['seconds'] / figures['seconds']:.2f}x as fast"
        print(text, flush=True)


def memory() -> list[dict[str, Any]]:
    """Peak memory of quantizing efficientnet_lite0 on 16 and on 256 samples."""
    with np.load(ZOO / "efficientnet_lite0_calib.npz") as data:
        images = data["input"].astype(np.float32)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for count in (16, 256):
            calib = Path(scratch) / f"calib{count}.npz"
            np.savez(calib, input=np.resize(images, (count, *images.shape[1:])))
            options = ["--calib", str(calib), "-o", str(Path(scratch) / "out.onnx"), "--force", "-q"]
            result = run([sys.executable, "-m", "qtool", "quantize", str(ZOO / "efficientnet_lite0.onnx"), *options])
            rows.append({"samples": count, **result})
            print(f"{count:4d} samples: {result['seconds']:.2f} s, peak {result['peak_mb']} MB", flush=True)
    return rows


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="comma-separated names; default: the whole zoo")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--runs", type=int, default=3, help="runs of each tool")
    parser.add_argument("--seconds", type=float, default=2.0, help="latency measurement per model file")
    parser.add_argument("--memory", action="store_true", help="only the memory comparison")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--calibration", action="store_true", help="only calibration, against that of onnxruntime")
    parser.add_argument("--methods", help="with --calibration: comma-separated range methods")
    parser.add_argument("--quick", action="store_true", help="with --calibration: fewer samples, one run")
    args = parser.parse_args()
    if not ZOO.is_dir():
        print(f"error: no model zoo at {ZOO}; set QTOOL_ZOO", file=sys.stderr)
        return 2
    names = args.models.split(",") if args.models else sorted(p.stem for p in ZOO.glob("*.onnx"))
    formats = args.formats.split(",")
    if args.calibration:
        import bench_calibration

        runs = 1 if args.quick else args.runs
        rows = bench_calibration.compare(ZOO, args.models, args.methods, runs, quick=args.quick)
    else:
        rows = memory() if args.memory else []
    for name in [] if args.memory or args.calibration else names:
        rows.append(benchmark(name, formats, args.runs, args.seconds))
        show(rows[-1])
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

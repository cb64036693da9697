"""Compare the engine spec-avx2 with onnxruntime on a processor that has AVX2 and no VNNI, emulated by qemu.

    python scripts/check_avx2_simulation.py quantized.onnx samples.npz --samples 2

Needs ``qemu-x86_64`` (Debian: qemu-user 7.2 or newer), which runs this Python with a Haswell as its processor. Prints
for each output the largest difference between onnxruntime there and the simulation, and for comparison that to
onnxruntime on the processor at hand; exits with 1 if the simulation is further off than ``--tolerance`` of the range.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CPU = "Haswell"
RUN = """
import sys, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
data = np.load(sys.argv[2])
names = [output.name for output in session.get_outputs()]
runs = [session.run(names, {i.name: data[i.name][k : k + 1] for i in session.get_inputs()})
        for k in range(int(sys.argv[4]))]
np.savez(sys.argv[3], *[np.concatenate(arrays) for arrays in zip(*runs)])
"""


def outputs(command: list[str], model: str, data: str, samples: int) -> list[np.ndarray[Any, Any]]:
    """Outputs of onnxruntime in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs.npz"
        arguments = ["-c", RUN, model, data, str(path), str(samples)]
        done = subprocess.run([*command, sys.executable, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"onnxruntime failed under {command or 'this processor'}: {done.stderr.strip()[-500:]}")
        with np.load(path) as archive:
            return [archive[name] for name in archive.files]


def simulated(model: str, data: str, samples: int) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
    """Outputs of the engine."""
    from qtool.runtime import create_session

    session = create_session(Path(model), engine="spec-avx2")
    with np.load(data) as archive:
        feeds = [{i.name: archive[i.name][k : k + 1] for i in session.inputs} for k in range(samples)]
    runs = [session.run(feed) for feed in feeds]
    names = [output.name for output in session.outputs]
    return names, [np.concatenate([run[name] for run in runs]) for name in names]


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", help="an .npz with one array per input, samples along the first axis")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.01, help="share of the range of an output")
    options = parser.parse_args()
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        sys.exit("There is no qemu-x86_64 on the PATH; Debian has it in the package qemu-user.")
    there = outputs([qemu, "-cpu", CPU], options.model, options.data, options.samples)
    here = outputs([], options.model, options.data, options.samples)
    names, expected = simulated(options.model, options.data, options.samples)
    failed = False
    for name, a, b, c in zip(names, there, expected, here, strict=True):
        span = float(np.ptp(a.astype(np.float64))) or 1.0
        off, native = (float(np.abs(x.astype(np.float64) - a).max()) / span for x in (b, c))
        failed |= not off <= options.tolerance
        print(f"{name}: simulation off by {off:.2e} of the range, onnxruntime on this processor by {native:.2e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""``--max-memory`` of whole commands, each in a process of its own on which the system sets the same limit."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")

LAYERS, SHAPE = 160, (1, 8, 100, 2000)
# RLIMIT_DATA counts what is reserved, too: stacks, and buffers of libraries that are never used
SLACK = 64_000_000
ACTIVATION_BYTES = 4 * int(np.prod(SHAPE))

# runs a command with a limit of the system on its data, and reports the peak of its resident memory
CHILD = """
import os, resource, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it reserves 32 MB for each
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))  # of each thread; reserved, hardly used
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from qtool.__main__ import main
code = main()
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("PEAK", int(peak) * 1024, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A chain of convolutions, whose activations take ten times what a limit leaves to them, and two samples."""
    folder = tmp_path_factory.mktemp("chain")
    nodes = [helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(LAYERS)]
    ends = [helper.make_tensor_value_info("t0", TensorProto.FLOAT, ["N", *SHAPE[1:3], "W"])]
    ends.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8, 1, 1]))
    nodes.append(helper.make_node("GlobalAveragePool", [f"t{LAYERS}"], ["y"]))
    w = np.full((8, 8, 1, 1), 1 / 8, np.float32)
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "chain.onnx"
    )
    x = np.random.default_rng(0).standard_normal((2, *SHAPE[1:]), dtype=np.float32)
    np.savez(folder / "chain.npz", t0=x)
    return folder


def run(folder, command, megabytes, *, enforced=False):
    """Returns exit code, peak in MB, and what was said of it."""
    output = folder / f"{command}.out"
    output.unlink(missing_ok=True)
    data = "--calib" if command == "quantize" else "--data"
    args = [command, folder / "chain.onnx", data, folder / "chain.npz", "-o", output]
    args += ["--quiet", "--max-memory", f"{megabytes}M"]
    limit = megabytes * 1_000_000 + SLACK if enforced else 0
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(limit), *map(str, args)], capture_output=True, text=True, check=False
    )
    peak = re.search(r"^PEAK (\d+)$", done.stderr, re.MULTILINE)
    assert peak is not None, done.stderr
    assert output.exists() == (done.returncode == 0), done.stderr
    assert not list(folder.glob(".qtool-*"))
    return done.returncode, int(peak[1]) / 1e6, done.stderr


def numbers(text):
    """What a refusal says is needed, and what it suggests."""
    found = re.search(r"cannot be kept: .* (?:needs|takes) (\d+) MB\.", text)
    hint = re.search(r"--max-memory (\d+)M", text)
    assert found is not None, text
    assert hint is not None, text
    return int(found[1]), int(hint[1])


@pytest.mark.parametrize("command", ["calibrate", "quantize"])
def test_a_limit_is_kept_by_the_whole_command_or_refused_with_one_that_is_enough(folder, command):
    code, peak, said = run(folder, command, 40)
    libraries, _ = numbers(said)
    assert code == 2
    assert "the process with its libraries takes" in said
    assert libraries - 2 <= peak <= libraries + 2
    # a limit that lets the process start, and no sample run
    code, peak, said = run(folder, command, libraries + 60)
    if code == 2 and "stages that follow" in said:
        _, enough = numbers(said)
        code, peak, said = run(folder, command, enough)
    assert code == 2, said
    _, enough = numbers(said)
    code, peak, said = run(folder, command, enough, enforced=True)
    assert code == 0, said
    assert peak <= enough
    assert 10 * (enough - libraries) < LAYERS * ACTIVATION_BYTES / 1e6
    lower = int(enough * 0.9)
    code, peak, said = run(folder, command, lower, enforced=True)
    assert code == 2 or peak <= lower

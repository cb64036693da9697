"""The arena that sessions share."""

from __future__ import annotations

import subprocess
import sys

from qtool.runtime import create_session
from tests.models import build

SCRIPT = """
import sys
import numpy as np
from qtool.runtime import create_session
from qtool.runtime.arena import release_arena

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 2**20

release_arena()  # nothing to give back yet
session = create_session(sys.argv[1], shared_memory=True, num_threads=1)
session.run({"x": np.ones((40, 2**20), np.float32)})
before = resident()
release_arena()
print(before - resident())
print(float(session.run({"x": np.full((1, 2), 3, np.float32)})["y"][0]))
"""


def test_shared_memory_is_given_back_and_the_session_still_runs(tmp_path):
    path = tmp_path / "m.onnx"
    model = build(
        "m (float[N,M] x) => (float[N] y) { a = Neg (x) b = Exp (a) y = ReduceSum <keepdims=0> (b, one) }", {"one": [1]}
    )
    path.write_bytes(model.SerializeToString())
    assert create_session(path).inputs[0].name == "x"
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True)
    freed, result = ended.stdout.split()
    assert int(freed) > 120  # of 160 MB of a
    assert abs(float(result) - 0.09957) < 1e-4  # 2 exp(-3)

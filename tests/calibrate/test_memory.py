"""Peak memory of collection, in processes of their own."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from qtool.calibrate.collect import collect
from qtool.calibrate.samples import open_samples
from qtool.errors import ConfigError
from qtool.runtime import create_session

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")

# a chain of convolutions with an activation of 3.2 MB after each
CHAIN = """
import json, resource, sys
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from qtool.calibrate.budget import current_memory, peak_memory
from qtool.calibrate.collect import collect
from qtool.calibrate.samples import open_samples
from qtool.errors import QtoolError
from qtool.runtime import create_session

def chain(layers, size):
    nodes = [helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], pads=[1] * 4) for i in range(layers)]
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8, size, "W"])
    w = np.full((8, 8, 3, 3), 1 / 72, np.float32)
    graph = helper.make_graph(nodes, "g", [value("t0")], [value(f"t{layers}")], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
"""

FLAT = """
count, ragged, histograms = json.loads(sys.argv[1])
model = chain(12, 64)
class Items:
    def __iter__(self):
        for i in range(count):
            yield {"t0": np.full((1, 8, 64, 48 + 16 * (i % 3) if ragged else 64), i + 1, np.float32)}
samples = open_samples(Items(), create_session(model).inputs)
seen = collect(model, [f"t{i}" for i in range(13)], samples, histograms=histograms)
print(json.dumps([seen.samples, peak_memory()]))
"""

LIMIT = """
room, layers = 48_000_000, 160
model = chain(layers, 100)
x = np.ones((4, 8, 100, 1000), np.float32)
x *= np.arange(1, 5, dtype=np.float32).reshape(-1, 1, 1, 1)
samples = open_samples({"t0": x}, create_session(model).inputs)
names = [f"t{i + 1}" for i in range(layers)]
small = open_samples({"t0": np.ones((1, 8, 100, 10), np.float32)}, create_session(model).inputs)
collect(chain(2, 100), ["t1"], small)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
data = int(status["VmData"].split()[0]) * 1024
limit = peak_memory() + room
resource.setrlimit(resource.RLIMIT_DATA, (data + room + 20_000_000,) * 2)  # and the stacks of two threads
seen = collect(model, names, samples, max_memory=limit, num_threads=2)
print(json.dumps([seen.samples, seen["t160"].count, limit, peak_memory()]))
try:
    collect(model, names, samples, max_memory=current_memory() + 1_000_000)
except QtoolError as error:
    print(json.dumps([error.message, error.hint, error.exit_code]))
"""


def run(script, *args):
    command = [sys.executable, "-c", textwrap.dedent(CHAIN + script), *map(json.dumps, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("histograms", [False, True])
def test_memory_is_that_of_few_samples_for_many(ragged, histograms):
    (few, least), (many, most) = (run(FLAT, [count, ragged, histograms])[0] for count in (16, 512))
    assert (few, many) == (16, 512)
    assert most - least < 30_000_000


def test_a_limit_is_kept_by_a_model_whose_activations_take_ten_times_as_much():
    (samples, count, limit, peak), (message, hint, code) = run(LIMIT)
    assert (samples, count) == (4, 4 * 8 * 100 * 1000)
    assert 160 * count * 4 / 4 > 10 * 48_000_000
    assert peak <= limit
    assert message.startswith("The limit of ")
    assert message.endswith(" MB.")
    assert hint.startswith("Give --max-memory ")
    assert code == 2


def test_a_limit_does_not_change_the_statistics_and_one_that_is_too_low_is_refused():
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) { a = Exp(x) y = Tanh(a) }'
    )
    x = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    samples = open_samples({"x": x}, create_session(proto).inputs)
    expected = collect(proto, ["a", "y"], samples, histograms=True)
    assert collect(proto, ["a", "y"], samples, histograms=True, max_memory=1 << 40) == expected
    with pytest.raises(ConfigError, match=r"^The limit of 1 MB of memory cannot be kept: one sample at a time needs"):
        collect(proto, ["a", "y"], samples, max_memory=1_000_000)

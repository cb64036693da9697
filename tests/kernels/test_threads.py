"""How many threads a call takes, and that a forked child never hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from qtool import kernels
from qtool.errors import ConfigError
from qtool.kernels import threads

if TYPE_CHECKING:
    from pathlib import Path

BIG = 10**9
needs_openmp = pytest.mark.skipif(not kernels.isa_info().openmp, reason="built without OpenMP")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture(autouse=True)
def no_thread_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QTOOL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_cgroup_cpus", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@needs_openmp
def test_sources_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.effective_num_threads(None, BIG) == 8
    monkeypatch.setattr(threads, "_cgroup_cpus", lambda: 6)
    assert kernels.effective_num_threads(None, BIG) == 6
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert kernels.effective_num_threads(None, BIG) == 4
    monkeypatch.setenv("QTOOL_NUM_THREADS", "12")
    assert kernels.effective_num_threads(None, BIG) == 12
    assert kernels.effective_num_threads(3, BIG) == 3


@needs_openmp
@pytest.mark.parametrize("junk", ["", "0", "-1", "many"])
def test_a_useless_omp_num_threads_is_the_business_of_openmp(monkeypatch: pytest.MonkeyPatch, junk: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", junk)
    assert kernels.effective_num_threads(None, BIG) == 8


@needs_openmp
def test_small_work_stays_on_one_thread_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.effective_num_threads(None, threads.SERIAL_WORK - 1) == 1
    assert kernels.effective_num_threads(None, threads.SERIAL_WORK) == 8
    monkeypatch.setenv("QTOOL_NUM_THREADS", "2")
    assert kernels.effective_num_threads(None, 0) == 1
    assert kernels.effective_num_threads(2, 0) == 2


def test_the_work_of_a_product_depends_on_the_kernel(isa: str) -> None:
    assert kernels.isa_info().cap == isa
    macs, weights = 256**3, 256**2
    serial = threads.product_work(macs, weights) < threads.SERIAL_WORK
    assert serial == (kernels.isa_info().isa == "amx_int8")  # 17 million multiply-adds: there two threads are slower
    assert threads.product_work(4096 * 4096, 4096 * 4096) >= threads.SERIAL_WORK  # one row: it is packing
    assert threads.product_work(0, 0) == 0


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "2", 10**12])
def test_bad_argument(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"^num_threads is .*; expected an integer from 1 to 1024\.$"):
        kernels.effective_num_threads(bad, BIG)


@pytest.mark.parametrize("bad", ["0", "-1", "two", "1.5", " ", "99999"])
def test_bad_variable(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("QTOOL_NUM_THREADS", bad)
    with pytest.raises(ConfigError) as error:
        kernels.effective_num_threads(None, 0)
    shown = int(bad) if bad.isdigit() else repr(bad)
    assert str(error.value) == f"QTOOL_NUM_THREADS is {shown}; expected an integer from 1 to 1024."


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 1),
        ("0::/a/b\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/gone\n", {}, None),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 1),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
        ("5:memory:/x\n", {"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
        ("", {}, None),
    ],
)
def test_cgroup_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], expected: int | None
) -> None:
    monkeypatch.undo()  # the fixture hides the function under test
    (tmp_path / "self").write_text(membership)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    assert threads._cgroup_cpus(str(tmp_path / "fs"), str(tmp_path / "self")) == expected


def test_without_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert threads._cgroup_cpus(str(tmp_path), str(tmp_path / "none")) is None


def python(code: str, **env: str) -> str:
    """Standard output of a fresh interpreter; a hang is a failure, and takes the hanging children with it."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.communicate()
        pytest.fail("The interpreter hangs.")
    assert process.returncode == 0, err
    return out


FORK = """
import os
import numpy as np
from qtool import kernels
from qtool.kernels import threads

a = np.arange(300 * 300, dtype=np.uint32).astype(np.uint8).reshape(300, 300)
expected = (a.astype(np.int64) @ a.astype(np.int64)).astype(np.int32)

def right():
    return np.array_equal(kernels.matmul_integer(a, a, num_threads=4), expected)

def in_child(action):
    child = os.fork()
    if child == 0:
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def threads():
    return kernels.effective_num_threads(4, 10**9) if right() else 100

def threads_of_a_grandchild():
    return in_child(threads) if right() else 100

print(in_child(threads), in_child(threads_of_a_grandchild), right())
print(in_child(threads), in_child(threads_of_a_grandchild))
"""


@needs_fork
@needs_openmp
def test_a_process_forked_after_a_parallel_region_computes_on_one_thread() -> None:
    before_any, child_of_it, parent, after_one, its_child = python(FORK).split()
    assert parent == "True"
    assert before_any == "4"  # its own runtime starts afresh
    assert (child_of_it, after_one, its_child) == ("1", "1", "1")


@needs_fork
def test_multiprocessing_pool_with_fork() -> None:
    code = """
import multiprocessing
import numpy as np
from qtool import kernels
from qtool.kernels import threads
a = np.ones((256, 256), np.uint8)
def work(seed):
    return int(kernels.matmul_integer(a, a, num_threads=2)[0, 0])
work(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(4)))
"""
    assert python(code).strip() == "[256, 256, 256, 256]"


def test_python_threads_share_the_kernels() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from qtool import kernels
from qtool.kernels import threads
a = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
expected = (a.astype(np.int64) @ a.astype(np.int64)).astype(np.int32)
with ThreadPoolExecutor(4) as pool:
    print(all(pool.map(lambda i: np.array_equal(kernels.matmul_integer(a, a, num_threads=2), expected), range(40))))
"""
    assert python(code).strip() == "True"


@needs_openmp
def test_the_variable_is_read_at_each_call() -> None:
    code = "from qtool import kernels; print(kernels.effective_num_threads(None, 10**9))"
    assert python(code, QTOOL_NUM_THREADS="3").strip() == "3"


EVERY_KERNEL = """
import os
import ml_dtypes
import numpy as np
from qtool import kernels
from qtool.dtypes import QDTYPES

rng = np.random.default_rng(0)
f = np.float32
x = rng.standard_normal((200, 999)).astype(f)
half, brain = x.astype(np.float16), x.astype(ml_dtypes.bfloat16)
scale, rows = f(0.02), np.linspace(0.01, 0.02, 200, dtype=f)
last = np.linspace(0.01, 0.02, 999, dtype=f)
a = rng.integers(0, 256, (130, 200), dtype=np.uint8)
b = rng.integers(-128, 128, (200, 130), dtype=np.int8)
image = rng.integers(0, 256, (2, 8, 23, 19), dtype=np.uint8)
w = rng.integers(-128, 128, (12, 8, 3, 3), dtype=np.int8)
each = rng.integers(-128, 128, (8, 1, 3, 3), dtype=np.int8)
codes = kernels.quantize(x, scale, np.int8(3))
nibbles = kernels.quantize(x, scale, output_dtype=QDTYPES["int4"])
packed = kernels.pack(nibbles, QDTYPES["int4"])
u, s = np.uint8(7), np.int8(0)

CALLS = {
    "quantize": lambda n: kernels.quantize(x, scale, np.int8(3), num_threads=n),
    "quantize rows": lambda n: kernels.quantize(x, rows, axis=0, output_dtype=QDTYPES["uint16"], num_threads=n),
    "quantize columns": lambda n: kernels.quantize(half, last.astype(np.float16), axis=1, num_threads=n),
    "quantize float8": lambda n: kernels.quantize(x, scale, output_dtype=QDTYPES["float8e4m3fn"], num_threads=n),
    "dequantize": lambda n: kernels.dequantize(codes, scale, np.int8(3), num_threads=n),
    "dequantize columns": lambda n: kernels.dequantize(codes, last, num_threads=n),
    "pack": lambda n: kernels.pack(nibbles, QDTYPES["int4"], num_threads=n),
    "unpack": lambda n: kernels.unpack(packed, QDTYPES["int4"], x.shape, num_threads=n),
    "min_max": lambda n: np.array(repr(kernels.min_max(brain, num_threads=n))),
    "absmax": lambda n: kernels.absmax(x, 1, num_threads=n),
    "histogram": lambda n: kernels.histogram(x, 3, 9, num_threads=n),
    "matmul_integer": lambda n: kernels.matmul_integer(a, b, u, num_threads=n),
    "gemv": lambda n: kernels.matmul_integer(a[:1], b, u, num_threads=n),
    "qlinear_matmul": lambda n: kernels.qlinear_matmul(a, f(1), u, b, f(1), s, f(99), u, num_threads=n),
    "conv_integer": lambda n: kernels.conv_integer(image, w, u, num_threads=n),
    "qlinear_conv": lambda n: kernels.qlinear_conv(image, f(1), u, w, f(1), s, f(99), u, pads=[1] * 4, num_threads=n),
    "depthwise": lambda n: kernels.qlinear_conv(image, f(1), u, each, f(1), s, f(99), u, group=8, num_threads=n),
    "dynamic": lambda n: kernels.dynamic_quantize_linear(x, num_threads=n)[0],
}

def differing(expected, counts):
    return [name for name, call in CALLS.items() for n in counts if call(n).tobytes() != expected[name]]

for isa in kernels.isa_info().supported:
    kernels.cap_isa(isa)
    expected = {name: call(1).tobytes() for name, call in CALLS.items()}
    wrong = differing(expected, [2, 3, 4])
    child = os.fork() if hasattr(os, "fork") else None
    if child == 0:
        os._exit(len(differing(expected, [1, 2, 4])))
    print(isa, wrong or "same", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""


def test_every_kernel_gives_the_same_for_each_thread_count_and_in_a_forked_child() -> None:
    expected = "".join(f"{isa} same 0\n" for isa in kernels.isa_info().supported)
    assert python(EVERY_KERNEL, QTOOL_ISA="auto") == expected


@needs_openmp
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_bounds_the_threads_of_a_real_process() -> None:
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from qtool import kernels
print(kernels.effective_num_threads(None, 10**12), kernels.effective_num_threads(2, 10**12))
"""
    assert python(code, QTOOL_NUM_THREADS="", OMP_NUM_THREADS="").split() == ["1", "2"]

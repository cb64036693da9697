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

"""How many threads a call gets, and which micro-kernel the compiled core runs on this CPU."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool import _core
from qtool.errors import ConfigError

SERIAL_WORK = 50_000
"""Below this much work a call stays on one thread: waking a team costs what the work does (some 50 microseconds)."""
MAX_THREADS = 1024
"""The most that may be asked for: an OpenMP runtime that cannot create a thread ends the process."""
_PACKED_PER_WORK = 6
"""Bytes of the right operand that are packed in a nanosecond, measured where its rows are pages apart."""

_OPENMP = _core.has_openmp()


class _Process:
    """Whether this process may still open parallel regions: a fork keeps the runtime's books but not its threads."""

    parallel_region_entered = False
    forked_after_one = False

    def after_fork_in_child(self) -> None:
        self.forked_after_one = self.forked_after_one or self.parallel_region_entered


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.after_fork_in_child)


def effective_num_threads(num_threads: int | None, work: int) -> int:
    """Threads for one call: the argument, else ``QTOOL_NUM_THREADS``, else what the process may use.

    An explicit argument is taken as it is. The other sources give an upper bound, and small work stays on one thread.
    A child that was forked after a parallel region always gets 1: the OpenMP runtime of GCC waits there for ever for
    threads that do not exist.

    Args:
        num_threads: Wanted number, at least 1; None asks the environment.
        work: Size of the call; one unit is about a nanosecond of one core: an element of an elementwise kernel, or what
            :func:`product_work` says.

    Raises:
        ConfigError: If ``num_threads`` or ``QTOOL_NUM_THREADS`` is not an integer from 1 to 1024.
    """
    if num_threads is not None:  # first: a look into the environment is a tenth of a small call
        wanted = _checked_threads("num_threads", num_threads)
    else:
        variable = os.environ.get("QTOOL_NUM_THREADS", "")
        wanted = _threads_of_variable(variable) if variable else 0
        if work < SERIAL_WORK:
            return 1
        wanted = wanted or _usable_cpus()
    if _process.forked_after_one or not _OPENMP:
        return 1
    if wanted > 1:
        _process.parallel_region_entered = True
    return wanted


def product_work(macs: int, weights: int) -> int:
    """Work of a product or a convolution for :func:`effective_num_threads`, on the matrix kernel that is chosen now.

    Args:
        macs: Multiply-adds.
        weights: Elements of the right operand.
    """
    return macs // _core.macs_per_ns() + weights // _PACKED_PER_WORK


@functools.lru_cache(maxsize=8)
def _threads_of_variable(variable: str) -> int:
    digits = variable.isascii() and variable.isdigit()
    return _checked_threads("QTOOL_NUM_THREADS", int(variable) if digits else variable)


def _checked_threads(name: str, given: object) -> int:
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or not 1 <= given <= MAX_THREADS:
        raise ConfigError(f"{name} is {given!r}; expected an integer from 1 to {MAX_THREADS}.")
    return int(given)


def _usable_cpus() -> int:
    """The least of: processors this process may run on, its cgroup's quota, OMP_NUM_THREADS."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cpus()
    if quota is not None:
        cpus = min(cpus, quota)
    openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is one entry per nesting level
    if openmp.isascii() and openmp.isdigit() and int(openmp) >= 1:
        cpus = min(cpus, int(openmp))
    return max(cpus, 1)


@functools.cache
def _cgroup_cpus(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> int | None:
    """Whole processors of the CPU quota of this process's control groups (v1 or v2), rounded up; None without one."""
    try:
        lines = Path(membership).read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, _, rest = line.partition(":")  # hierarchy:controllers:path, with no controllers in v2
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = Path(root) if not controllers else Path(root) / "cpu"
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):  # a parent's quota binds its children; in a container root is the group
            quota = _read_quota(folder, v2=not controllers)
            if quota is not None:
                found.append(quota)
            if folder == base:
                break
    return max(1, math.ceil(min(found))) if found else None


def _read_quota(folder: Path, *, v2: bool) -> float | None:
    try:
        if v2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        value = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max": no quota
        return None
    return value if value > 0 else None


@dataclass(frozen=True)
class KernelChoice:
    """What dispatch chose for one family of kernels.

    Attributes:
        family: Name of the family.
        kernel: The chosen kernel.
        isa: The instruction set it is written for.
        reason: Why this one, and what kept each better one out.
    """

    family: str
    kernel: str
    isa: str
    reason: str


@dataclass(frozen=True)
class IsaInfo:
    """What the processor has, what dispatch is allowed, and what it chose.

    Attributes:
        features: Detected features, named as in /proc/cpuinfo; those the operating system does not save are absent.
        supported: Values of ``QTOOL_ISA`` that this processor can carry out.
        cap: The value in force; ``auto`` is no cap.
        amx: Permission of the operating system to use AMX tiles: ``absent`` (no such processor), ``not asked`` (no
            kernel with tiles was wanted yet), ``granted`` or ``refused``.
        kernel: Micro-kernel of the 8-bit matrix product.
        isa: The instruction set it is written for.
        reason: Why this kernel.
        families: The same for each family of kernels; the matrix product is the first.
        openmp: Whether the extension was built with threads.
    """

    features: tuple[str, ...]
    supported: tuple[str, ...]
    cap: str
    amx: str
    kernel: str
    isa: str
    reason: str
    families: tuple[KernelChoice, ...]
    openmp: bool

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for a report."""
        return asdict(self)


AMX_REFUSED = (
    "the operating system refused AMX to this process (a thread with a small signal stack, a seccomp filter, "
    "or Linux before 5.16)"
)


def isa_info() -> IsaInfo:
    """Detected features, the cap of ``QTOOL_ISA``, the chosen row of each kernel family and why."""
    features, supported, cap, amx, found = _core.isa_state()
    families = tuple(
        KernelChoice(family, kernel, isa, _reason(kernel, rows, supported, cap))
        for family, (kernel, isa), rows in found
    )
    gemm = families[0]
    return IsaInfo(features, supported, cap, amx, gemm.kernel, gemm.isa, gemm.reason, families, _OPENMP)


def _reason(kernel: str, rows: tuple[tuple[str, str], ...], supported: tuple[str, ...], cap: str) -> str:
    """Why ``kernel`` and none of the rows before it."""
    names = _core.isa_names()
    passed = rows[: [name for name, _ in rows].index(kernel)]
    capped = [name for name, isa in passed if cap != "auto" and names.index(isa) > names.index(cap)]
    absent = [name for name, isa in passed if name not in capped and isa not in supported]
    refused = [name for name, _ in passed if name not in capped + absent]
    best = "the best of the rest" if passed else "the best"
    parts = [best if len(rows) > 1 else "the only kernel of this build"]
    if capped:
        parts.append(f"QTOOL_ISA={cap} excludes {', '.join(capped)}")
    if absent:
        parts.append(f"this processor cannot run {', '.join(absent)}")
    if refused:
        parts.append(f"{AMX_REFUSED}, so not {', '.join(refused)}")
    return "; ".join(parts)


def cap_isa(name: str) -> str:
    """Cap dispatch at an instruction set, as ``QTOOL_ISA`` does at import; returns the kernel chosen.

    For tests: not thread-safe.

    Raises:
        ValueError: If there is no such name.
        RuntimeError: If this processor does not have it.
    """
    return _core.set_isa(name)

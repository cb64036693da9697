"""CPU detection, the cap QTOOL_ISA, and what isa_info() says about them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qtool import _core, kernels, reference
from qtool.kernels import threads
from tests.kernels.conftest import ISAS

FEATURES = {
    "f16c",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512dq",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "amx_tile",
    "amx_int8",
}


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(), reason="needs x86-64 and /proc/cpuinfo"
)
def test_features_are_those_of_proc_cpuinfo() -> None:
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    assert set(kernels.isa_info().features) == FEATURES & set(flags.split(":")[1].split())


@pytest.mark.skipif(platform.machine() == "x86_64", reason="another architecture than x86-64")
def test_other_architectures_have_the_scalar_kernel_only() -> None:
    info = kernels.isa_info()
    assert (info.features, info.supported, info.isa) == ((), ("scalar",), "scalar")


def test_info_is_honest() -> None:
    info = kernels.isa_info()
    assert info.supported[0] == "scalar"
    assert set(info.supported) <= set(ISAS)
    gemm = info.families[0]
    assert (gemm.family, gemm.kernel, gemm.isa, gemm.reason) == ("gemm_u8s8", info.kernel, info.isa, info.reason)
    assert info.amx in {"absent", "not asked", "granted", "refused"}
    assert (info.amx == "absent") == ("amx_int8" not in info.supported)
    assert info.to_dict()["families"][0]["kernel"] == info.kernel


def test_the_choice_is_the_best_row_within_the_cap(isa: str) -> None:
    _, supported, cap, _, families = _core.isa_state()
    assert cap == isa
    for _, chosen, rows in families:
        possible = [row for row in rows if row[1] in supported and ISAS.index(row[1]) <= ISAS.index(isa)]
        assert chosen == possible[0]
        assert chosen[0].endswith(f"__{chosen[1]}")
        assert rows[-1][1] == "scalar"


def test_the_reason_names_what_kept_better_rows_out() -> None:
    rows = (("t__amx_int8", "amx_int8"), ("z__avx512vnni", "avx512vnni"), ("y__avx2", "avx2"), ("c__scalar", "scalar"))
    every, old = ISAS, ("scalar", "avx2")
    assert threads._reason("t__amx_int8", rows, every, "auto") == "the best"
    assert threads._reason("c__scalar", rows[-1:], every, "auto") == "the only kernel of this build"
    refused = f"the best of the rest; {threads.AMX_REFUSED}, so not t__amx_int8"
    assert threads._reason("z__avx512vnni", rows, every, "auto") == refused
    lacking = "the best of the rest; this processor cannot run t__amx_int8, z__avx512vnni"
    assert threads._reason("y__avx2", rows, old, "auto") == lacking
    capped = "the best of the rest; QTOOL_ISA=scalar excludes t__amx_int8, z__avx512vnni, y__avx2"
    assert threads._reason("c__scalar", rows, old, "scalar") == capped


AMX_REFUSED = """
import ctypes, mmap
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = mmap.mmap(-1, 8192)  # too small for a signal frame with tiles (11 952 bytes)
small = Stack(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0, 8192)
assert ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(small), None) == 0, ctypes.get_errno()
import numpy as np
from qtool import kernels
info = kernels.isa_info()
a = np.arange(70 * 90, dtype=np.uint32).astype(np.uint8).reshape(70, 90)
right = (a.astype(np.int64) @ a.T.astype(np.int64)).astype(np.int32)
assert np.array_equal(kernels.matmul_integer(a, a.T, num_threads=2), right)
print(info.amx, info.isa, info.reason, sep="|")
"""


@pytest.mark.skipif("amx_int8" not in kernels.isa_info().supported, reason="this processor has no AMX")
@pytest.mark.skipif(
    not any(row[1] == "amx_int8" for _, _, rows in _core.isa_state()[4] for row in rows),
    reason="this build has no kernel with tiles",
)
@pytest.mark.parametrize("value", ["auto", "amx_int8"])
def test_a_refusal_of_amx_falls_back_and_says_so(value: str) -> None:
    env = os.environ | {"QTOOL_ISA": value}
    done = subprocess.run([sys.executable, "-c", AMX_REFUSED], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    permission, isa, reason = done.stdout.strip().split("|")
    assert permission == "refused"
    assert isa in set(ISAS) - {"amx_int8"}
    assert threads.AMX_REFUSED in reason


def test_a_lower_cap_never_asks_for_amx() -> None:
    code = "from qtool import kernels; print(kernels.isa_info().amx)"
    env = os.environ | {"QTOOL_ISA": "scalar"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ("not asked" if "amx_int8" in kernels.isa_info().supported else "absent")


def test_a_run_names_the_instruction_sets_that_it_left_out() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", __file__, "-k", "exact"]
    env = os.environ | {"QTOOL_ISA": "scalar"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    named = [line for line in done.stdout.splitlines() if line.startswith("kernels not tested: ISA ")]
    assert [line.split()[4].rstrip(":") for line in named] == sorted(ISAS[1:])
    if kernels.isa_info().supported == ISAS:
        assert named[0] == "kernels not tested: ISA amx_int8: above the cap QTOOL_ISA=scalar"


def test_products_are_exact_under_every_cap(isa: str) -> None:
    assert kernels.isa_info().cap == isa
    rng = np.random.default_rng(0)
    for k in [0, 1, 3, 4, 5, 63, 64, 65, 130]:
        a, b = rng.integers(0, 256, (9, k), dtype=np.uint8), rng.integers(-128, 128, (k, 35), dtype=np.int8)
        args = (a, b, np.uint8(200), np.int8(-100))
        np.testing.assert_array_equal(kernels.matmul_integer(*args, num_threads=2), reference.matmul_integer(*args))


def test_cap_isa_refuses_unknown_names_and_keeps_the_cap() -> None:
    before = kernels.isa_info()
    with pytest.raises(ValueError, match="QTOOL_ISA=sse9 is not an instruction set; expected one of auto, scalar"):
        kernels.cap_isa("sse9")
    assert kernels.isa_info() == before


def run(value: str) -> subprocess.CompletedProcess[str]:
    code = "from qtool import kernels; i = kernels.isa_info(); print(i.cap, i.isa)"
    env = os.environ | {"QTOOL_ISA": value}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("value", ["", "auto", *ISAS])
def test_the_variable_is_a_cap(value: str) -> None:
    done = run(value)
    if value in ("", "auto", *kernels.isa_info().supported):
        cap, isa = done.stdout.split()
        assert (done.returncode, cap) == (0, value or "auto")
        assert ISAS.index(isa) <= ISAS.index(value if value in ISAS else "amx_int8")
        assert value != "scalar" or isa == "scalar"
    else:
        assert done.returncode != 0
        supported = ", ".join(kernels.isa_info().supported)
        message = f"RuntimeError: QTOOL_ISA={value} is not supported by this processor; supported: auto, {supported}."
        assert done.stderr.splitlines()[-1] == message


def test_an_unknown_name_fails_at_import_with_the_list() -> None:
    done = run("avx1024")
    assert done.returncode != 0
    message = f"ValueError: QTOOL_ISA=avx1024 is not an instruction set; expected one of auto, {', '.join(ISAS)}."
    assert done.stderr.splitlines()[-1] == message

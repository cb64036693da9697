"""CPU detection, the cap QTOOL_ISA, and what isa_info() says about them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qtool import kernels, reference
from tests.kernels.conftest import ISAS

FEATURES = {"avx2", "avx_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "amx_tile", "amx_int8"}


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
    assert (info.kernel, info.isa) == ("4x2c8__scalar", "scalar")
    assert info.reason == "4x2c8__scalar is the only kernel of this build; every cap resolves to it"
    assert info.to_dict()["cap"] == info.cap


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
        assert (done.returncode, done.stdout.split()) == (0, [value or "auto", "scalar"])
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

"""scripts/check_wheel_isa.py, and that no wide instruction of this build leaks out of its kernels."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from qtool import _core

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_wheel_isa", ROOT / "scripts" / "check_wheel_isa.py")
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

needs_tools = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump") or not shutil.which("gcc"),
    reason="needs x86-64, objdump and gcc",
)


@needs_tools
def test_this_build_keeps_wide_instructions_in_their_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    code = script.main([_core.__file__])
    shown = capsys.readouterr()
    assert shown.err == ""
    assert code == 0
    baseline = next(line for line in shown.out.splitlines() if line.lstrip().startswith("baseline"))
    assert baseline.endswith("wide instructions: none")


@pytest.mark.parametrize(
    ("instruction", "needs"),
    [
        ("addps  %xmm1,%xmm0", None),
        ("verr   %ax", None),
        ("pmaddwd (%rax),%xmm1", None),
        ("vzeroupper", "avx2"),
        ("vaddps %xmm0,%xmm1,%xmm2", "avx2"),
        ("vpaddd %ymm0,%ymm1,%ymm2", "avx2"),
        ("vcvtph2ps (%rax),%ymm0", "f16c"),
        ("vfmadd231ps %ymm0,%ymm1,%ymm2", "fma"),
        ("{vex} vpdpbusd %ymm0,%ymm1,%ymm2", "avxvnni"),
        ("vpdpbusd %ymm0,%ymm1,%ymm2", "avx512vnni"),
        ("vpaddd %ymm16,%ymm1,%ymm2", "avx512vnni"),
        ("vpaddd %zmm0,%zmm1,%zmm2", "avx512vnni"),
        ("vmovdqu8 %xmm0,(%rdi){%k1}", "avx512vnni"),
        ("kmovw  %eax,%k1", "avx512vnni"),
        ("tdpbusd %tmm2,%tmm1,%tmm0", "amx_int8"),
        ("ldtilecfg (%rsp)", "amx_int8"),
    ],
)
def test_what_an_instruction_needs(instruction: str, needs: str | None) -> None:
    assert script.required(instruction) == needs


@pytest.mark.parametrize(
    ("function", "isa"),
    [
        ("qt_pack__avx2", "avx2"),
        ("qt_pack__avx2.constprop.0", "avx2"),
        ("qt_run_6x16c4__avxvnni.part.0.isra.1", "avxvnni"),
        ("f__avx512vnni._omp_fn.2", "avx512vnni"),
        ("f__amx_int8.cold", "amx_int8"),
        ("f__avx512", "baseline"),
        ("qt__avx2_table", "baseline"),
        ("__pyx_f_5qtool_5_core__multiply", "baseline"),
    ],
)
def test_what_a_name_promises(function: str, isa: str) -> None:
    assert script.promised(function) == isa


LEAK = """
#include <immintrin.h>
__attribute__((target("avx2"))) void plain(int *x) {
    __m256i *v = (__m256i *)x;
    *v = _mm256_add_epi32(*v, *v);
}
__attribute__((target("avx512f"))) void wide__avx2(int *x) {
    __m512i *v = (__m512i *)x;
    *v = _mm512_add_epi32(*v, *v);
}
__attribute__((target("avx2"))) void right__avx2(int *x) { plain(x + 1); plain(x); }
"""


def build(folder: Path, *flags: str) -> Path:
    library = folder / "leak.so"
    (folder / "leak.c").write_text(LEAK)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *flags, str(folder / "leak.c"), "-o", str(library)], check=True)
    return library


@needs_tools
def test_a_leak_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = build(tmp_path)
    assert script.main([str(library)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert any("leak.so: plain (baseline) has" in line for line in errors)
    assert any("leak.so: wide__avx2 (avx2) has" in line and "avx512vnni" in line for line in errors)
    assert not any("right__avx2" in line for line in errors)


@needs_tools
def test_a_wheel_is_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = build(tmp_path)
    wheel = tmp_path / "qtool-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, "qtool/_core.so")
    assert script.main([str(wheel)]) == 1
    assert "_core.so: plain" in capsys.readouterr().err


@needs_tools
def test_what_cannot_be_told_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert script.main([str(build(tmp_path, "-s"))]) == 2
    assert "has no symbols" in capsys.readouterr().err
    assert script.main([str(tmp_path / "none.so")]) == 2
    assert "there is no file" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.main([str(tmp_path / "leak.so")]) == 2
    assert "there is no objdump" in capsys.readouterr().err


def test_the_script_runs_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_wheel_isa.py"), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0

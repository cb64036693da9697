"""The registry, its selection, and the smallest case of each kind once."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from qtool import kernels
from qtool.bench import report
from qtool.bench.cases import conv, elementwise, matmul, select, spec, statistics
from qtool.bench.cases.case import Case, Engine, allowed_isas, capped
from qtool.bench.run import Result, Skipped, run
from qtool.errors import ConfigError


def test_names_are_unique_and_the_quick_list_is_a_part():
    names = [case.name for case in select()]
    assert len(set(names)) == len(names)
    quick = [case.name for case in select(quick=True)]
    assert quick == [name for name in names if name in quick]
    assert 10 < len(quick) < 30


def test_a_pattern_selects_from_everything():
    found = select("gemv*/matmul_integer/*", quick=True)
    assert [case.name for case in found] == [
        "gemv_packed/matmul_integer/1x4096x4096",
        "gemv/matmul_integer/1x4096x4096",
    ]


def test_a_pattern_that_matches_nothing_says_what_there_is():
    with pytest.raises(ConfigError, match="No benchmark has a name that matches 'gemm'") as caught:
        select("gemm")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Names begin with one of qlinear_matmul_packed, matmul_integer_packed, ")


def small(build, name: str = "small", unit: str = "GOPS", **more) -> Result:
    (found,) = run([Case(name, unit, 1e6, build, **more)], rounds=1, threads=1)
    assert isinstance(found, Result)
    assert all(len(times) == 1 and times[0] > 0 for times in found.samples.values())
    return found


@pytest.mark.parametrize("codes", [False, True], ids=["integer", "qlinear"])
@pytest.mark.parametrize("packed", [False, True], ids=["unpacked", "packed"])
def test_matmul_equals_onnxruntime(codes: bool, packed: bool):
    found = small(lambda t: matmul.build((5, 33, 65), "u8s8", t, codes=codes, packed=packed, extras="serial"))
    assert found.others == ("onnxruntime", "one thread")
    assert found.differs == ()


@pytest.mark.parametrize("depthwise", [False, True])
def test_conv_equals_onnxruntime(depthwise: bool):
    found = small(lambda t: conv.build(6, 6, 9, 3, 2, t, depthwise=depthwise))
    assert (found.others, found.differs) == (("onnxruntime",), ())


@pytest.mark.parametrize("name", elementwise.KINDS)
def test_quantize_has_its_peers(name: str):
    found = small(lambda t: elementwise.quantize(elementwise.KINDS[name], 4096, 4096 * 5, t, copy=True), unit="GB/s")
    assert (found.others, found.differs) == (("onnxruntime", "copy"), ())


def test_dequantize_and_statistics():
    assert small(lambda t: elementwise.dequantize(4096, t)).differs == ()
    found = small(lambda t: statistics.histogram(4096, t))
    assert (found.others, found.differs) == (("NumPy",), ())
    assert small(lambda t: statistics.min_max(4096, t)).others == ("NumPy",)


def test_the_spec_engine_has_its_peer(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }'
    )
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), np.float32))
    found = small(lambda t: spec.build(model.SerializeToString(), tmp_path / "x.npz", t), unit="runs/s")
    assert (found.others, found.differs) == (("onnx.reference",), ())


def test_the_spec_engine_is_skipped_without_the_zoo(monkeypatch: pytest.MonkeyPatch, tmp_path):
    (case,) = select("spec_engine/*")
    for folder, reason in ((None, "QTOOL_ZOO is not set"), (tmp_path, "efficientnet_lite0_eval.npz in the folder")):
        if folder is None:
            monkeypatch.delenv("QTOOL_ZOO", raising=False)
        else:
            monkeypatch.setenv("QTOOL_ZOO", str(folder))
        (found,) = run([case], rounds=1, threads=1)
        assert isinstance(found, Skipped)
        assert reason in found.reason


def test_a_cap_holds_while_its_engine_runs_and_not_after():
    before = kernels.isa_info().cap
    seen = []

    def sample() -> float:
        seen.append(kernels.isa_info().cap)
        return 1.0

    (found,) = run(
        [Case("x", "GOPS", 1e9, lambda _: [Engine("qtool", sample, "scalar"), Engine("other", sample)])],
        rounds=1,
        threads=1,
    )
    assert isinstance(found, Result)
    assert seen == ["scalar", before, "scalar", before]
    with capped("auto"):
        assert kernels.isa_info().cap == before


def test_a_case_that_cannot_run_here_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    info = dataclasses.replace(kernels.isa_info(), supported=("scalar",))
    monkeypatch.setattr(kernels, "isa_info", lambda: info)
    cases = [
        Case("a", "GOPS", 1.0, lambda _: [], isa="avx2"),
        Case("b", "GOPS", 1.0, lambda _: [], threads=4096),
    ]
    found = run(cases, rounds=1, threads=1)
    assert all(isinstance(one, Skipped) for one in found)
    reasons = [row[-1] for row in report.rows(found)]
    assert reasons[0] == "skipped: this processor has no avx2"
    assert reasons[1].startswith("skipped: needs 4096 processors, there ")


def test_an_output_that_differs_is_marked():
    def build(threads: int) -> list[Engine]:
        ones, twos = np.ones(3, np.int8), np.full(3, 2, np.uint8)
        return [
            Engine("qtool", lambda: 1.0, result=lambda: ones),
            Engine("same", lambda: 2.0, result=ones.copy),
            Engine("other", lambda: 2.0, result=lambda: twos),
            Engine("unknown", lambda: 2.0),
        ]

    assert small(build).differs == ("other",)


def test_the_cap_of_the_process_holds():
    supported = kernels.isa_info().supported
    with capped("scalar"):
        assert allowed_isas() == ("scalar",)
        (found,) = run(
            [Case("a", "GOPS", 1.0, lambda _: [Engine("qtool", lambda: 1.0)], isa=supported[-1])], rounds=1, threads=1
        )
    if supported[-1] != "scalar":
        assert isinstance(found, Skipped)
        assert found.reason == "QTOOL_ISA=scalar is in force"

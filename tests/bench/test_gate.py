"""Floors and goals on planted numbers."""

from __future__ import annotations

import dataclasses

import pytest

from qtool import kernels
from qtool.bench import gate
from qtool.bench.cases import select
from tests.bench.fakes import result


@pytest.mark.parametrize(
    ("name", "peers", "expected"),
    [
        ("qlinear_matmul_packed/512x512x512", {"onnxruntime": 1.39}, ["short"]),
        ("qlinear_matmul_packed/512x512x512", {"onnxruntime": 1.4}, ["floor"]),
        ("qlinear_matmul_packed/512x512x512", {"onnxruntime": 1.8, "oneDNN": 1.0}, ["goal", "short"]),
        ("qlinear_matmul_packed/512x512x512", {"amx_peak": 0.4}, ["floor"]),
        ("qlinear_matmul_packed/256x256x256", {"onnxruntime": 0.1, "amx_peak": 0.1}, []),  # below the table's sizes
        ("qlinear_matmul_packed/32x11008x4096", {"onnxruntime": 0.1}, []),
        ("matmul_integer_packed/1024x1024x1024", {"onnxruntime": 1.2}, ["floor"]),
        ("matmul_integer_packed/2048x2048x2048", {"onnxruntime": 1.2}, ["goal"]),
        ("matmul_integer/256x256x256", {"onnxruntime": 1.2}, ["short"]),
        ("qlinear_matmul/256x256x256", {"onnxruntime": 1.6}, ["short"]),
        ("matmul_integer_packed_s8s8/512x512x512", {"onnxruntime": 24.0}, ["short"]),
        ("gemv/matmul_integer/1x4096x4096", {"onnxruntime": 7.0}, ["floor"]),
        ("gemv_packed/matmul_integer/1x4096x4096", {"onnxruntime": 1.0}, ["short"]),
        ("forced_avx512vnni/128x768x768", {"onnxruntime": 0.3, "vnni_peak": 0.61}, ["floor"]),
        ("forced_avx2/512x512x512", {"onnxruntime": 0.3, "qtool_avx512vnni": 0.1}, ["floor"]),  # reported, never short
        ("two_threads/1024x1024x1024", {"onnxruntime": 0.9, "one_thread": 1.8}, ["short", "floor"]),
        ("two_threads/128x768x768", {"onnxruntime": 1.1, "one_thread": 1.0}, ["goal"]),
        ("depthwise_conv/3x3/144x56x56", {"onnxruntime": 0.85}, ["floor"]),
        ("quantize_tensor/float8e4m3fn/1M", {"onnxruntime": 11.0}, ["short"]),
        ("quantize_tensor/int8/1M", {"onnxruntime": 1.4, "copy": 0.79}, ["floor", "short"]),
        ("dequantize_tensor/int8/1M", {"onnxruntime": 1.2}, ["goal"]),
        ("dequantize_tensor/int8/16M", {"onnxruntime": 1.2}, ["short"]),
        ("histogram/float32/1M", {"NumPy": 8.0}, ["floor"]),
        ("min_max/float32/16M", {"NumPy": 1.7}, ["goal"]),
    ],
)
def test_verdicts(name: str, peers: dict[str, float], expected: list[str]):
    assert [v.status for v in gate.judge([result(name, **peers)])] == expected


def test_a_sentence_names_ratio_floor_and_goal():
    (short,) = gate.judge([result("histogram/float32/1M", NumPy=2.5)])
    assert short.sentence() == "histogram/float32/1M: 2.50 times NumPy, floor 7, goal 9: too slow"
    (between,) = gate.judge([result("histogram/float32/1M", NumPy=7.0)])
    assert between.sentence().endswith("floor 7, goal 9: goal missed")


def test_every_floor_is_about_some_case_and_is_below_its_goal():
    names = [case.name for case in select()]
    for row in gate.FLOORS:
        assert any(gate.fnmatchcase(name, row.pattern) for name in names), row
        assert 0 <= row.floor <= row.goal
    assert len({(row.pattern, row.against) for row in gate.FLOORS}) == len(gate.FLOORS)


def test_the_gate_runs_what_has_a_floor():
    needed = {case.name for case in gate.needed(select())}
    assert "qlinear_matmul_packed/512x512x512" in needed
    assert "qlinear_matmul_packed/256x256x256" not in needed


def test_floors_are_only_for_their_instruction_set():
    info = dataclasses.replace(kernels.isa_info(), supported=("scalar", "amx_int8"), cap="auto")
    assert gate.why_not_judged(info, 1) is None
    assert gate.why_not_judged(info, 2) == "the floors are for one thread, and there are 2"
    capped = dataclasses.replace(info, cap="avx2")
    assert gate.why_not_judged(capped, 1) == "the floors are for amx_int8, and QTOOL_ISA=avx2 is in force"
    without = dataclasses.replace(info, supported=("scalar", "avx2"))
    assert gate.why_not_judged(without, 1) == "the floors are for amx_int8, which this processor lacks"

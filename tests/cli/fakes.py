"""A stand-in for ``qtool.api``: the command line is tested for what it passes on and how it shows what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qtool.api import Inspection, QuantizeResult
from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.config import QuantConfig
from qtool.evaluate.report import Latency, OutputReport, Report, Sizes
from qtool.plan import Decision, Form, Plan, Skip
from qtool.runtime import TensorInfo

SKIPS = (
    *(Skip(f"shape{i}", "Shape", "computes no floats", expected=True) for i in range(5)),
    Skip("odd", "Conv", "its weight is not constant"),
)
DECISION = Decision(
    "conv1", "Conv", Form.OPERATOR, inputs=((0, "x"),), absorbed=("relu1",), note="a scale was repaired"
)
PLAN = Plan((DECISION,), SKIPS, {"x": None}, nodes=8, absorbed_types={"relu1": "Relu"})


def result(**changes: Any) -> QuantizeResult:
    """What a small quantization returns."""
    fields: dict[str, Any] = {
        "model_path": Path("m.int8.onnx"),
        "model": None,
        "plan": PLAN,
        "quantized": 2,
        "total": 8,
        "by_op": PLAN.by_operator(),
        "skips": list(SKIPS),
        "bytes_before": 26454,
        "bytes_after": 9100,
        "sqnr_db": {"y": 38.25},
        "verified_samples": 4,
        "actions": (),
        "notes": ["extra key 'labels' ignored"],
        "seconds": {"prepare": 0.5, "calibrate": 1.0},
        "peak_rss_bytes": 180_000_000,
        "config": QuantConfig(),
        "message": "2 of 8 nodes quantized",
    }
    return QuantizeResult(**fields | changes)


def statistics(**changes: Any) -> Statistics:
    """What a small calibration returns."""
    tensors = {
        "x": TensorStatistics(
            count=4,
            zeros=1,
            minimum=-1.5,
            maximum=2.0,
            histogram=np.ones(4, np.int64),
            exponent=2,
            sample_ranges=1,
            sample_min_sum=-3 << 148,
            sample_max_sum=2 << 149,
        ),
        "h": TensorStatistics(count=2, pos_inf=2),
    }
    return Statistics(**{"tensors": tensors, "samples": 1, "notes": ("extra key 'labels' ignored",)} | changes)


def inspection() -> Inspection:
    """What a small inspection returns."""
    nodes = [
        ("conv1", "Conv", "quantize", ""),
        ("odd", "Conv", "float", "its weight is not constant"),
        ("bad\x1b[31mname", "Shape", "float", "computes no floats"),
    ]
    return Inspection(
        nodes=nodes,
        by_op={"Conv": (1, 2), "Shape": (0, 1)},
        inputs=(TensorInfo("x", np.dtype(np.float32), ("N", 3, None)),),
        outputs=(TensorInfo("y", np.dtype(np.float32), ("N", 10)),),
        opset=17,
        ir_version=8,
        nbytes=26454,
        weight_bytes=24000,
        domains=["ai.onnx"],
        quantized=1,
        total=3,
    )


def report(**changes: Any) -> Report:
    """A small evaluation."""
    values = {"sqnr": 31.5, "max_abs": 0.25}
    fields: dict[str, Any] = {
        "float_model": "m.onnx",
        "quantized_model": "q.onnx",
        "metrics": ("sqnr", "max_abs"),
        "outputs": (OutputReport("y", "float32", ("N", 10), 100, values, float_values={}),),
        "samples": 10,
        "sources": (),
        "sizes": Sizes(26454, 9100),
        "latency": Latency(1.0, 0.5, 7, 70, 1, None),
        "notes": ("extra key 'labels' ignored",),
    }
    return Report(**fields | changes)


class Api(ModuleType):
    """A module ``qtool.api`` that records its calls and answers with prepared values, or raises them."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("qtool.api")
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        answers = {"quantize": result(), "inspect": inspection(), "evaluate": report()} | answers
        for name, answer in answers.items():
            setattr(self, name, self._function(name, answer))

    def _function(self, name: str, answer: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            if isinstance(answer, BaseException):
                raise answer
            return answer(*args, **kwargs) if callable(answer) else answer

        return call


def strict_json(text: str) -> Any:
    """Parse JSON as RFC 8259 has it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)

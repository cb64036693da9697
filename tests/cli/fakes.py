"""A stand-in for ``qtool.api``: the command line is tested for what it passes on and how it shows what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from qtool.evaluate.report import Latency, OutputReport, Report, Sizes

SKIPS = [
    *(SimpleNamespace(node=f"shape{i}", op_type="Shape", reason="computes no floats", expected=True) for i in range(5)),
    SimpleNamespace(node="odd", op_type="Conv", reason="its weight is not constant", expected=False),
]
PLAN = SimpleNamespace(
    decisions=[SimpleNamespace(node="conv1", op_type="Conv", form="operator", absorbed=("relu1",))],
    skips=SKIPS,
)


@dataclass
class Result:
    """The attributes of a QuantizeResult that the command line reads."""

    model_path: Path | None = Path("m.int8.onnx")
    plan: Any = field(default_factory=lambda: PLAN)
    quantized: int = 2
    total: int = 8
    by_op: Mapping[str, tuple[int, int]] = field(default_factory=lambda: {"Conv": (1, 2), "Shape": (0, 5)})
    skips: list[Any] = field(default_factory=lambda: SKIPS)
    bytes_before: int = 26454
    bytes_after: int = 9100
    sqnr_db: Mapping[str, float] = field(default_factory=lambda: {"y": 38.25})
    notes: list[str] = field(default_factory=lambda: ["extra key 'labels' ignored"])
    seconds: Mapping[str, float] = field(default_factory=lambda: {"prepare": 0.5, "calibrate": 1.0})
    peak_rss_bytes: int = 180_000_000
    exit_code: int = 0
    message: str = "2 of 8 nodes quantized"

    def to_dict(self) -> dict[str, Any]:
        return {"model_path": str(self.model_path), "quantized": self.quantized}


@dataclass(frozen=True)
class Tensor:
    """An input or output."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass
class Inspection:
    """The attributes of an Inspection that the command line reads."""

    nodes: tuple[tuple[str, str, str, str], ...] = (
        ("conv1", "Conv", "quantize", ""),
        ("odd", "Conv", "float", "its weight is not constant"),
        ("bad\x1b[31mname", "Shape", "float", "computes no floats"),
    )
    by_op: Mapping[str, tuple[int, int]] = field(default_factory=lambda: {"Conv": (1, 2), "Shape": (0, 1)})
    inputs: tuple[Tensor, ...] = (Tensor("x", "float32", ("N", 3, None)),)
    outputs: tuple[Tensor, ...] = (Tensor("y", "float32", ("N", 10)),)
    opset: int = 17
    ir_version: int = 8
    nbytes: int = 26454
    weight_bytes: int = 24000
    domains: tuple[str, ...] = ("ai.onnx",)

    def to_dict(self) -> dict[str, Any]:
        return {"opset": self.opset, "nodes": [list(node) for node in self.nodes]}


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
        answers = {"quantize": Result(), "inspect": Inspection(), "evaluate": report()} | answers
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

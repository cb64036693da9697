"""Predicted fusions beside the graph that onnxruntime makes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from qtool.api import QuantizeResult
from qtool.plan.fusion import PRODUCTS
from qtool.runtime.optimized import optimized_nodes


def fused_operators(model: str | Path | onnx.ModelProto) -> Counter[str]:
    """Operators that compute on codes in onnxruntime's graph."""
    ops = Counter(node.op_type for node in optimized_nodes(model))
    return Counter(
        {op: n for op, n in ops.items() if op.startswith("QLinear") or op in (*PRODUCTS, "MatMulNBits", "ArgMax")}
    )


def _families(ops: Counter[str]) -> Counter[str]:
    """Products under one name: which of its three onnxruntime takes is a matter of shapes."""
    found: Counter[str] = Counter()
    for op, n in ops.items():
        found["product" if op in PRODUCTS else op] += n
    return found


def check_fusion(result: QuantizeResult, model: str | Path | onnx.ModelProto) -> None:
    """The prediction holds; a Concat with one scale moves codes, whether it becomes a QLinearConcat or not."""
    assert result.fusion is not None
    predicted, real = _families(result.fusion.operators()), _families(fused_operators(model))
    movers = sum(d.op_type == "Concat" and str(d.form) == "mover" for d in result.plan.decisions)
    extra = real["QLinearConcat"] - predicted["QLinearConcat"]
    assert 0 <= extra <= movers
    real["QLinearConcat"] -= extra
    assert +predicted == +real

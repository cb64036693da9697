"""Makes docs/operators.md from what becomes of a tiny model of each operator.

``python -m tests.plan.operator_table > docs/operators.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import onnx

import qtool
from qtool.errors import ConfigError
from qtool.plan.fusion import MOVED_AS_FLOATS
from qtool.plan.ops.reasons import REASONS
from qtool.plan.tables import MIN_ELEMENTS
from qtool.targets import TARGETS
from tests.models import build, normal
from tests.plan.test_plan import ALONE, MODELS, between

HEAD = """\
# Operators

What becomes of each operator, for each target and in each of its forms. A test quantizes a tiny model of every operator
and compares; this file is written by it:

    python -m tests.plan.operator_table > docs/operators.md

| cell | means |
|---|---|
| integer | computed on codes: in `qlinear` form by QLinearConv or QLinearMatMul where `ai.onnx` has such an \
operator, else between DequantizeLinear and QuantizeLinear, where the runtime fuses it |
| codes | moved as codes: input and output share their scale and zero point |
| codes (floats) | the same numbers, but onnxruntime moves them as floats: it does not take this operator out of a \
DequantizeLinear and a QuantizeLinear |
| float between codes | in float between a DequantizeLinear and a QuantizeLinear: onnxruntime does not fuse it |
| weights | only its weights are stored in 8 bits; arithmetic in float |
| with others | part of another quantized node: a scale, or a bound that saturation keeps |
| prepared away | exact surgery on the float graph removes it |
| float | left alone |

An operator that only moves or combines values is quantized where what is around it is: behind a Conv, say, and in front
of another one. That is how the models of this table look. In a residual stream of floats it stays float. Which nodes of
a model are, and why the others are not, say `qtool inspect MODEL` and `qtool quantize --dry-run`.
"""
FLOAT_HEAD = """
## Operators that stay float

By design, on every target, with the reason that `qtool inspect` gives:

| reason | operators |
|---|---|
"""
NOTES = """
## Notes

- Attention scores (products in front of or behind a Softmax) stay float, except in a graph that has no other product.
- A Conv whose weight is computed or an input has one scale for the weight, and must have no bias.
- A table is gathered as codes if it has at least {elements} elements and only Gathers along axis 0 read it. Its
  rows have a scale each: from opset 21 on they go through a DequantizeLinear, below through a Cast and a Mul.
- Weights of a product have one scale for each output channel, those of other ranks than 2 one for all.
- ArgMax reads codes where its input exists as codes; ties were ties before.
- A Relu or Clip that reads the float result of an integer product is written as Max and Min, which are the same to the
  last bit: onnxruntime (1.32) would take it for a part of the product and then fuse neither.
- LSTM, GRU and RNN stay float: their states feed back, and every step would round them again. `--dynamic` stores the
  weights of an LSTM in 8 bits.
"""


def columns() -> list[tuple[str, str]]:
    """(target, format) of each column."""
    return [(name, form) for name, target in TARGETS.items() for form in target.formats]


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """(row, model) of each operator; the node in question is called ``op``."""
    for op, (body, shape) in ALONE.items():
        spatial = ",6,6" if len(shape) == 4 else ""
        dims = "N,b,c,d" if spatial else "N,b"
        text = f"m (float[N,8{spatial}] x) => (float[{dims}] y) {{ [op] y = {body} }}"
        yield op, build(text, {"w": normal(*shape)})
    yield "MatMul of two activations", build("m (float[N,6,6] x) => (float[N,6,6] y) { [op] y = MatMul(x, x) }")
    text = "m (float[N,4,6,6] x, float[4,4,3,3] w) => (float[N,4,4,4] y) { [op] y = Conv(x, w) }"
    yield "Conv with a computed weight", build(text)
    text = "m (int64[N] i) => (float[N,4] y) { [op] e = Gather(t, i) y = MatMul(e, w) }"
    table = np.zeros((MIN_ELEMENTS // 64, 64), np.float32)
    yield "Gather of a table", build(text, {"t": table, "w": normal(64, 4)})
    text = "m (float[N,4,6,6] x) => (int64[N,1,4,4] y) { a = Conv(x, w) [op] y = ArgMax<axis=1>(a) }"
    yield "ArgMax", build(text, {"w": normal(4, 4, 3, 3)})
    for op in MODELS:
        yield op, between(op)


def cell(model: onnx.ModelProto, target: str, form: str) -> str:
    """What becomes of the node ``op``."""
    result = qtool.quantize(model, target=target, format=form, dry_run=True, allow_empty=True)
    plan = result.plan
    unfused = {n.node for n in result.fusion.unfused} if result.fusion is not None else set()
    for decision in plan.decisions:
        if "op" in decision.absorbed:
            return "with others"
        if decision.node == "op":
            kind = str(decision.form)
            if kind == "elementwise" and "op" in unfused and TARGETS[target].microsoft_operators:
                return "float between codes"
            moved = "codes (floats)" if form == "qdq" and decision.op_type in MOVED_AS_FLOATS else "codes"
            return {"operator": "integer", "elementwise": "integer", "mover": moved, "weight-only": "weights"}[kind]
    return "float" if any(s.node == "op" for s in plan.skips) else "prepared away"


def document() -> str:
    """The whole file."""
    heads = columns()
    lines = [
        "| operator | " + " | ".join(f"{target} {form}" for target, form in heads) + " |",
        "|---|" + "---|" * len(heads),
    ]
    for row, model in models():
        cells = []
        for target, form in heads:
            try:
                cells.append(cell(model, target, form))
            except ConfigError:
                cells.append("refused")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    reasons: dict[str, list[str]] = {}
    for op, (reason, _) in REASONS.items():
        reasons.setdefault(reason, []).append(op)
    table = "\n".join(f"| {reason} | {', '.join(sorted(ops))} |" for reason, ops in reasons.items())
    notes = NOTES.format(elements=MIN_ELEMENTS)
    return HEAD + "\n" + "\n".join(lines) + "\n" + FLOAT_HEAD + table + "\n" + notes


if __name__ == "__main__":
    sys.stdout.write(document())

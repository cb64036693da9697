"""Plan of weight-only mode: which constants are stored quantized, and how. Activations and arithmetic stay float.

Nothing depends on anything else here: each node of the graph and of its bodies is decided on its own, and needs no
statistics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.dtypes import BLOCKED_FLOOR, HALF_SCALE_FLOOR, QDType, qdtype
from qtool.errors import ModelError
from qtool.granularity import Granularity, PerBlock
from qtool.plan.ops.base import skip
from qtool.plan.ops.reasons import CONTROL_WALKED, reason
from qtool.plan.plan import Decision, Form, Plan, Skip
from qtool.plan.scopes import constant_tensor, scoped_nodes
from qtool.plan.selection import Selection
from qtool.plan.stored import Layout, StoredWeight
from qtool.plan.weight_layouts import RULES, Operand, layout_of
from qtool.qparams import QParams
from qtool.weight_settings import effective_block
from qtool.weights import choose_parameters, codes_of, error_energies, restored

# What a DequantizeLinear and the names of its operands take in a file; a weight that saves less is left alone.
MIN_SAVED_BYTES = 1024
# what some weights need beyond the settings (reason -> opset, IR version): a model is raised that far if it can be
NEEDS = {
    "a scale per row of a table needs opset 21": BLOCKED_FLOOR,
    "half-precision scales need opset 19": HALF_SCALE_FLOOR,
}
# a runtime moves these codes; Gather has no narrower types and no float8
_TABLE_DTYPES = ("int8", "uint8")
# operators that have weights, or nodes with weights inside them
_KNOWN_FLOAT = frozenset(("LSTM", "GRU", "RNN", "If", "Loop", "Scan", "SequenceMap"))
_LARGE_CONSTANT = 1 << 16
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def plan_weights(model: ir.Model, config: QuantConfig, selection: Selection) -> Plan:
    """Decide about every node of a prepared model, bodies included; no weight is read.

    Args:
        model: A prepared model; it is only read.
        config: Settings with ``weight_only``.
        selection: The include and exclude patterns, resolved against the user's model.
    """
    decisions: list[Decision] = []
    skips: list[Skip] = []
    opset = model.graph.opset_imports.get("", 1)
    for name, node in scoped_nodes(model.graph):
        if node.op_type == "Constant" and node.graph is not model.graph:
            skips.append(Skip(name, node.op_type, "works on shapes or integers", expected=True))
            continue
        answer = _decide(node, selection.config_for(node) if config.overrides else config, selection, opset)
        if isinstance(answer, Skip):
            skips.append(replace(answer, node=name))
        else:
            decisions.append(Decision(name, node.op_type, Form.WEIGHT_ONLY, weights=(answer,), note=answer.describe()))
    return Plan(tuple(decisions), tuple(skips), {}, len(decisions) + len(skips), notes=_notes(decisions, config))


def choose_weight_parameters(model: ir.Model, plan: Plan, *, num_threads: int | None = None) -> Plan:
    """Fill in scales and zero points, and what each weight is worth.

    Args:
        model: The prepared model that the plan was made for.
        plan: From :func:`plan_weights`.
        num_threads: Threads of the kernels; the result does not depend on it.

    Raises:
        ModelError: If a weight holds a NaN or an infinity.
    """
    nodes = dict(scoped_nodes(model.graph))
    done: dict[tuple[int, Layout, Granularity | None, str], tuple[QParams, tuple[float, float]]] = {}
    decisions = []
    for decision in plan.decisions:
        weights = []
        for weight in decision.weights:
            assert isinstance(weight, StoredWeight), "Bug: not a plan of weight-only mode"
            assert weight.dtype is not None, "Bug: a stored weight without a type"
            value = nodes[decision.node].inputs[weight.index]
            tensor = constant_tensor(value)
            assert tensor is not None, "Bug: a planned weight is missing"
            key = (id(tensor), weight.layout, weight.granularity, weight.dtype.name)
            if key not in done:
                done[key] = _parameters(weight, tensor, num_threads)
            params, energies = done[key]
            weights.append(replace(weight, params=params, energies=energies))
        decisions.append(replace(decision, weights=tuple(weights)))
    return replace(plan, decisions=tuple(decisions))


def check_finite_weights(model: ir.Model, plan: Plan) -> None:
    """Refuse weights that cannot be quantized.

    Raises:
        ModelError: If one holds a NaN or an infinity; the message names it and the first index.
    """
    nodes = dict(scoped_nodes(model.graph))
    for decision in plan.decisions:
        for weight in decision.weights:
            tensor = constant_tensor(nodes[decision.node].inputs[weight.index])
            assert tensor is not None, "Bug: a planned weight is missing"
            _finite(weight.tensor, tensor.numpy())


def _decide(node: ir.Node, config: QuantConfig, selection: Selection, opset: int) -> StoredWeight | Skip:
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        return _without_rule(node)
    why = selection.reason_to_skip(node)
    if why is not None:
        return skip(node, why)
    found = rule(node)
    if not isinstance(found, Operand):
        return skip(node, found[0], expected=found[1])
    return _stored(node, found, config, opset)


def _without_rule(node: ir.Node) -> Skip:
    if node.domain not in ("", "ai.onnx") or node.op_type in _KNOWN_FLOAT:
        walked = CONTROL_WALKED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        text, expected = walked or reason(node.op_type, node.domain)
        return skip(node, text, expected=expected)
    sizes = [tensor.nbytes for tensor in map(constant_tensor, node.inputs) if tensor is not None]
    if max(sizes, default=0) >= _LARGE_CONSTANT:
        return skip(node, f"its constant of {max(sizes)} bytes is not multiplied as a weight")
    return skip(node, "it has no weights", expected=True)


def _stored(node: ir.Node, operand: Operand, config: QuantConfig, opset: int) -> StoredWeight | Skip:
    value = node.inputs[operand.index]
    tensor = constant_tensor(value)
    assert value is not None, "Bug: a rule found a missing operand"
    assert tensor is not None, "Bug: a rule found an operand that is not constant"
    if tensor.dtype not in _FLOATS:
        whole = tensor.dtype.is_integer() or tensor.dtype == ir.DataType.BOOL
        return skip(node, f"its constant is {tensor.dtype.name.lower()}", expected=whole)
    if 0 in operand.shape:
        return skip(node, "its weight has no elements")
    block, dtype = effective_block(config), qdtype(config.weights)
    floors = [] if tensor.dtype == ir.DataType.FLOAT else ["half-precision scales need opset 19"]
    scale_type = None if config.scale_type is None else qdtype(config.scale_type)
    nbits = config.matmul_nbits and _runs_on_nbits(operand, tensor.dtype, dtype)
    granularity, layout = layout_of(operand, dtype, block=block, per_channel=config.per_channel, nbits=nbits)
    if layout is Layout.ROWS:
        scale_type = None
        if dtype.name not in _TABLE_DTYPES:
            dtype = qdtype("int8")
            granularity, _ = layout_of(operand, dtype, block=config.block, per_channel=True, nbits=False)
        if isinstance(granularity, PerBlock):
            floors.append("a scale per row of a table needs opset 21")
    for needed in floors:
        if opset < NEEDS[needed][0]:
            return skip(node, needed)
    stored = StoredWeight(
        value.name or "",
        operand.index,
        axis=operand.channel,
        shape=operand.shape,
        dtype=dtype,
        scale_type=scale_type,
        granularity=granularity,
        layout=layout,
    )
    if layout is Layout.ROWS and stored.has_one_scale_per_row and _rank(node.inputs[1]) is None:
        return skip(node, "its indices have no known rank, which decides between one scale and one per row")
    before = int(tensor.nbytes)
    after = _nbytes(stored, int(tensor.dtype.itemsize))
    if before - after < MIN_SAVED_BYTES:
        saved = f"{before - after} bytes" if before > after else "nothing"
        return skip(node, f"its weight of {before} bytes would save {saved}; that does not pay", expected=True)
    return replace(stored, bytes_before=before, bytes_after=after)


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _runs_on_nbits(operand: Operand, weight: ir.DataType, dtype: QDType) -> bool:
    """Whether onnxruntime's own operators take the types: MatMulNBits, and GatherBlockQuantized for tables."""
    if operand.table:
        return weight == ir.DataType.FLOAT and dtype.bits >= 4 and operand.shape[-1] % 2 == 0
    return weight in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _nbytes(weight: StoredWeight, scale_bytes: int) -> int:
    """Of codes, scales and zero points."""
    assert weight.dtype is not None, "Bug: a stored weight without a type"
    assert weight.granularity is not None, "Bug: a stored weight without blocks"
    elements = int(np.prod(weight.shape))
    shape = weight.shape
    if weight.layout is Layout.FLAT:
        shape = (shape[0], elements // shape[0])
    elif weight.layout in (Layout.TRANSPOSED, Layout.NBITS):
        shape = shape[::-1]
    scales = int(np.prod(weight.granularity.scale_shape(shape)))
    per_scale = scale_bytes if weight.scale_type is None else weight.scale_type.bits // 8
    zeros = weight.dtype.nbytes(scales) if weight.has_zero_points else 0
    return weight.dtype.nbytes(elements) + scales * per_scale + zeros


def _parameters(
    weight: StoredWeight, tensor: ir.TensorProtocol, num_threads: int | None
) -> tuple[QParams, tuple[float, float]]:
    array = _finite(weight.tensor, tensor.numpy())
    assert weight.dtype is not None, "Bug: a stored weight without a type"
    assert weight.granularity is not None, "Bug: a stored weight without blocks"
    arranged = weight.arranged(array)
    params = choose_parameters(
        arranged, weight.dtype, weight.granularity, scale_type=weight.scale_type, num_threads=num_threads
    )
    codes = codes_of(arranged, params, num_threads=num_threads)
    return params, error_energies(arranged, restored(codes, params, num_threads=num_threads))


def _finite(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    finite = np.isfinite(array)
    if finite.all():
        return array
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    raise ModelError(
        f"Weight '{name}' holds {array[first]} at index {list(first)}; expected finite values.",
        hint="Repair the model, or leave the nodes that read this weight out with --exclude.",
    )


def _notes(decisions: list[Decision], config: QuantConfig) -> tuple[str, ...]:
    stored = [w for d in decisions for w in d.weights if isinstance(w, StoredWeight)]
    notes = []
    tables = sorted({w.tensor for w in stored if w.layout is Layout.ROWS and w.dtype is not qdtype(config.weights)})
    if tables:
        others = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        notes.append(
            f"table '{tables[0]}'{others}: stored as int8, one scale per row, because Gather takes no {config.weights}"
        )
    shared = [t for t, n in Counter(w.tensor for w in stored if w.layout is Layout.DIRECT).items() if n > 1]
    if shared:
        others = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        notes.append(
            f"weight '{shared[0]}'{others}: read by several nodes and stored once, which onnxruntime does not fuse"
        )
    return tuple(notes)


def floor_of(config: QuantConfig) -> tuple[int, int]:
    """The lowest (opset, IR version) that the settings need, tables aside."""
    if config.overrides:
        floors = [floor_of(one) for one in (replace(config, overrides=()), *config.variants[1:])]
        return max(f[0] for f in floors), max(f[1] for f in floors)
    dtype: QDType = qdtype(config.weights)
    opset, ir_version = dtype.floor(per_axis=config.per_channel, blocked=effective_block(config) is not None)
    if config.scale_type is not None:
        scale_floor = qdtype(config.scale_type).floor()
        opset, ir_version = max(opset, scale_floor[0]), max(ir_version, scale_floor[1])
    return opset, ir_version

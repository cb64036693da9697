"""Does onnxruntime, with its optimisations on, compute what the file says?

The quantized model runs as it is written, node by node, and as onnxruntime would run it for a user. A fused kernel
rounds a sum once where two operators round twice, so a code may differ by one. More is a miscompile: a fusion that
changes the model.

A difference of one code runs through the layers that follow, so the outputs of a deep model may lie several codes apart
although every kernel is right. Where they do, the model is cut at its quantized tensors: each piece gets the codes of
the run as written, and what it makes of them is compared by itself. The first tensor that then differs by more than one
code is the one whose node was miscompiled; where none does, differences have only added up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qtool.errors import ModelError, QtoolError
from qtool.evaluate.attribution.command import exclusion
from qtool.evaluate.checks.result import CheckResult, Finding, counted
from qtool.evaluate.checks.subject import Subject
from qtool.runtime.products import FLOAT_PRODUCTS, OPERANDS

if TYPE_CHECKING:
    import onnx

    from qtool.runtime.products import GraphView

NAME, TITLE = "miscompile", "onnxruntime's optimised graph against the graph as written"

SAMPLES = 2
SECONDS = 0.5
"""After this long no further sample is run; one always is."""
TOLERANCE = 1.0 + 1e-3
"""Codes that rounding explains; the rest is float error of a scale."""
_LISTED = 5
_LARGEST = 1_500_000_000  # bytes of a proto that is copied and serialized
_MOVERS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Cast")

Array = npt.NDArray[Any]


@dataclass
class Difference:
    """Of one tensor over all runs, in codes.

    Attributes:
        largest: The largest, in codes; inf where only one side is a number.
        beyond: Elements that differ by more than one code.
        elements: Elements compared.
    """

    largest: float = 0.0
    beyond: int = 0
    elements: int = 0

    def add(self, written: Array, optimized: Array, unit: float) -> None:
        """One batch of a tensor, whose codes are ``unit`` apart."""
        self.elements += written.size
        if written.shape != optimized.shape:
            self.largest, self.beyond = math.inf, self.beyond + written.size
            return
        if not written.size:
            return
        written, optimized = np.atleast_1d(written), np.atleast_1d(optimized)  # arithmetic makes a scalar of no axis
        with np.errstate(all="ignore"):
            codes = np.abs(optimized.astype(np.float64) - written.astype(np.float64)) / unit
        codes[(written == optimized) | (np.isnan(written) & np.isnan(optimized))] = 0
        codes[np.isnan(codes)] = math.inf
        self.largest = max(self.largest, float(codes.max()))
        self.beyond += int(np.count_nonzero(codes > TOLERANCE))


def check(subject: Subject) -> CheckResult:
    """Compare the outputs, and where they part, every quantized tensor by itself."""
    written_session = subject.session(optimize=False)
    try:
        session = subject.session(optimize=True)
    except ModelError as error:
        summary = f"onnxruntime loads the graph as written, and refuses it with optimisations on: {error.message}"
        return CheckResult(NAME, TITLE, "flagged", summary)
    feeds, runs = [], []
    start = time.perf_counter()
    for feed in subject.first(SAMPLES).batches(1):
        feeds.append(feed)
        runs.append((written_session.run(feed), session.run(feed)))
        if time.perf_counter() - start > SECONDS:
            break
    count = len(feeds)
    units = _output_units(subject.graph, [written for written, _ in runs])
    outputs = _compared(runs, units)
    worst = max((d.largest for d in outputs.values()), default=0.0)
    values = {"largest": worst}
    if worst <= TOLERANCE:
        summary = f"Outputs agree within one code ({_codes(worst)} at most) on {counted(count, 'sample')}."
        return CheckResult(NAME, TITLE, "ok", summary, values=values, samples=count)
    name = max(outputs, key=lambda n: outputs[n].largest)
    apart = f"Output '{name}' differs by up to {_codes(worst)}"
    local = _local(subject, feeds, units)
    if local is None:
        return _by_noise(subject, feeds, runs, name, apart, values, count)
    parted = [(tensor, d) for tensor, d in local.items() if d.largest > TOLERANCE]
    if not parted:
        summary = (
            f"{apart}, by differences of one code that add up: from the same codes, each of {len(local)} tensors "
            f"agrees within one code ({counted(count, 'sample')})."
        )
        return CheckResult(NAME, TITLE, "ok", summary, values=values, samples=count)
    findings = tuple(_finding(subject, tensor, d, first=not at) for at, (tensor, d) in enumerate(parted[:_LISTED]))
    summary = (
        f"{apart} between the optimised graph and the graph as written, which part at '{findings[0].subject}' "
        f"({counted(count, 'sample')})."
    )
    return CheckResult(
        NAME, TITLE, "flagged", summary, findings, values | {"tensors": len(local), "parted": len(parted)}, count
    )


def _finding(subject: Subject, tensor: str, difference: Difference, *, first: bool) -> Finding:
    """What parts at a tensor, by the operators that a user knows."""
    suspects = _made_by(subject.graph, tensor)
    share = difference.beyond / difference.elements
    text = (
        f"{'the first to part: ' if first else ''}'{tensor}' differs by up to {_codes(difference.largest)}, "
        f"{share:.1%} of it by more than one"
    )
    if len(suspects) > 1:
        text += f"; between codes and it are {', '.join(repr(name) for name in suspects[:_LISTED])}"
    options = " ".join(exclusion(name) for name in suspects[:_LISTED])
    name = suspects[0] if len(suspects) == 1 else tensor
    return Finding(name, text, options, {"tensor": tensor, "largest": difference.largest, "share": share})


def _made_by(view: GraphView, tensor: str) -> list[str]:
    """Named operators between the codes before a tensor and the tensor; only products, if there are some."""
    names, products = [], []
    seen, waiting = set(), [tensor]
    while waiting:
        node = view.producer.get(waiting.pop())
        if node is None or node.op_type == "DequantizeLinear" or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op_type not in ("QuantizeLinear", "Constant") and node.name:
            names.append(node.name)
            if node.op_type in (*FLOAT_PRODUCTS, *OPERANDS):
                products.append(node.name)
        if node.op_type not in OPERANDS:
            waiting += node.input
    return (products or names)[::-1]


def _by_noise(
    subject: Subject,
    feeds: list[dict[str, Array]],
    runs: list[tuple[dict[str, Array], dict[str, Array]]],
    name: str,
    apart: str,
    values: dict[str, float],
    count: int,
) -> CheckResult:
    """Where there are no codes to cut at: a miscompile moves the outputs by more than quantization does."""
    floats = [subject.float_session.run(feed) for feed in feeds]
    moved = _noise([written[name] for written, _ in runs], [optimized[name] for _, optimized in runs])
    lost = _noise([run[name] for run in floats], [written[name] for written, _ in runs])
    flagged = not moved <= lost
    word = "more" if flagged else "less"
    summary = f"{apart}, {word} than quantization moves it; there are no codes inside that could be compared."
    finding = Finding(name, "the optimised graph gives other values than the graph as written")
    found = (finding,) if flagged else ()
    return CheckResult(NAME, TITLE, "flagged" if flagged else "ok", summary, found, values, count)


def _noise(reference: list[Array], candidate: list[Array]) -> float:
    """Sum of squared differences; inf where shapes differ."""
    if any(a.shape != b.shape for a, b in zip(reference, candidate, strict=True)):
        return math.inf
    with np.errstate(all="ignore"):
        pairs = zip(reference, candidate, strict=True)
        return float(sum(np.square(a.astype(np.float64) - b.astype(np.float64)).sum() for a, b in pairs))


def _compared(
    runs: list[tuple[dict[str, Array], dict[str, Array]]], units: Mapping[str, float]
) -> dict[str, Difference]:
    found = {name: Difference() for name in units}
    for written, optimized in runs:
        for name, unit in units.items():
            found[name].add(written[name], optimized[name], unit)
    return found


def _output_units(view: GraphView, written: list[dict[str, Array]]) -> dict[str, float]:
    """The distance of two codes of each output: its scale, or 1/255 of its range where it has none.

    Integer outputs that hold no codes (an index) are left out: a tie may go either way.
    """
    units = {}
    for name in written[0]:
        if written[0][name].dtype.kind not in "fiu" and written[0][name].dtype.name != "bfloat16":
            continue
        node = view.producer.get(name)
        if node is not None and node.op_type == "QuantizeLinear":
            units[name] = 1.0
            continue
        if written[0][name].dtype.kind in "iu":
            continue
        scale = _scale(view, name)
        if scale is None:
            arrays = [run[name][np.isfinite(run[name])].astype(np.float64) for run in written]
            arrays = [array for array in arrays if array.size]
            high, low = (max((a.max() for a in arrays), default=0.0), min((a.min() for a in arrays), default=0.0))
            scale = float(high - low) / 255 or 1.0
        units[name] = scale
    return units


def _scale(view: GraphView, name: str) -> float | None:
    """Scale of the DequantizeLinear that gives a value, through operators that only move it."""
    from onnx import numpy_helper

    node = view.producer.get(name)
    while node is not None and node.op_type in _MOVERS and node.op_type != "Cast":
        node = view.producer.get(node.input[0])
    if node is None or node.op_type != "DequantizeLinear" or node.input[1] not in view.tensors:
        return None
    scale = view.tensors[node.input[1]]
    return float(numpy_helper.to_array(scale).reshape(())) if math.prod(scale.dims) == 1 else None


def code_tensors(view: GraphView) -> list[str]:
    """Activations that are codes, in graph order: results of QuantizeLinear and of operators on codes."""
    found = []
    for node in view.graph.node:
        if node.domain in ("", "ai.onnx") and node.op_type in ("QuantizeLinear", "QLinearMatMul", "QLinearConv"):
            constant = node.op_type == "QuantizeLinear" and node.input[0] in view.tensors
            if not constant and node.output[0] not in view.captured:
                found.append(node.output[0])
    return found


_ZERO_POINTS = {"QuantizeLinear": 2, "QLinearMatMul": 7, "QLinearConv": 7}


def cut_model(model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, str]]:
    """A model that gives its codes as outputs too, and one that also takes them as inputs.

    Returns:
        Both, and for each tensor of codes that is read the name of the input that takes its place.
    """
    import onnx
    from onnx import TensorProto, helper

    from qtool.runtime.products import GraphView

    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # what it raises moved between versions; shapes only help fusions
        inferred = model
    view = GraphView(inferred.graph)
    infos = {value.name: value for value in inferred.graph.value_info}
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    fresh = {}
    for name in code_tensors(view):
        zero = _ZERO_POINTS[view.producer[name].op_type]
        inputs = view.producer[name].input
        number = view.tensors[inputs[zero]].data_type if len(inputs) > zero and inputs[zero] in view.tensors else 0
        if number not in (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16):
            continue  # onnxruntime hands out no others as arrays
        info = helper.make_tensor_value_info(name, number, None)
        if name in infos and infos[name].type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.CopyFrom(infos[name].type.tensor_type.shape)
        if name not in outputs:
            whole.graph.output.append(info)
        if view.consumers.get(name):
            taken = onnx.ValueInfoProto()
            taken.CopyFrom(info)
            taken.name = fresh[name] = f"{name}__as_written"
            whole.graph.input.append(taken)
    pieces = onnx.ModelProto()
    pieces.CopyFrom(whole)
    for node in pieces.graph.node:
        for at, name in enumerate(node.input):
            if name in fresh:
                node.input[at] = fresh[name]
    del whole.graph.input[len(model.graph.input) :]
    return whole, pieces, fresh


def _local(subject: Subject, feeds: list[dict[str, Array]], units: Mapping[str, float]) -> dict[str, Difference] | None:
    """Differences of every tensor of codes, and of the outputs, from codes of the run as written.

    Returns:
        None if the model has no such tensors, or its pieces do not run.
    """
    from qtool.runtime import create_session

    model = subject.light_proto
    if model.ByteSize() > _LARGEST:
        return None
    whole, pieces, fresh = cut_model(model)
    if not fresh:
        return None
    options: dict[str, Any] = {
        "num_threads": subject.num_threads,
        "base_dir": subject.base_dir,
        "shared_memory": True,
    }
    try:
        written = create_session(whole, optimize=False, **options)
        optimized = create_session(pieces, optimize=True, **options)
        found: dict[str, Difference] = {}
        start = time.perf_counter()
        for feed in feeds:
            if found and time.perf_counter() - start > SECONDS:
                break
            codes = written.run(feed)
            taken = {fresh[name]: array for name, array in codes.items() if name in fresh}
            results = optimized.run({**feed, **taken})
            for name, array in codes.items():
                unit = units.get(name, 1.0 if name in fresh else 0.0)
                if unit:
                    found.setdefault(name, Difference()).add(array, results[name], unit)
    except QtoolError:  # the pieces are ours, not the user's: the whole model did run
        return None
    order = {name: at for at, node in enumerate(model.graph.node) for name in node.output}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], 0)))


def _codes(number: float) -> str:
    return "one code" if number == 1 else f"{number:.3g} codes"

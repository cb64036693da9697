"""Do the samples stay within the ranges that the quantized model was calibrated for?

The scale and zero point of a QuantizeLinear say which values it can represent; what lies outside is cut off. Inputs are
looked at in all samples. With layers, every float tensor that is quantized is, on some samples: in the quantized model
as it is written, or, where an operator on codes leaves no float tensor there, in the float model, which has it under
the name that qtool's codes carry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qtool.evaluate.checks.result import CheckResult, Finding, State, counted
from qtool.evaluate.checks.span import Range
from qtool.evaluate.checks.subject import Subject

if TYPE_CHECKING:
    import onnx

    from qtool.evaluate.attribution.tally import InputTally
    from qtool.runtime.products import GraphView

NAME, TITLE = "ranges", "Values outside the calibrated range"

SAMPLES = 4
SECONDS = 0.5
"""After this long no further sample is looked at inside; one always is."""
_BATCH = 32
_LISTED = 20
_MOVERS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Pad", "Gather", "Expand")
_SHARE = 1e-3
"""Inner tensors are flagged from this share on: range methods cut off some outliers on purpose."""
_FAR = 2.0
"""And inputs and inner tensors from this many times the range on, whatever their number."""

Array = npt.NDArray[Any]


def check(subject: Subject) -> CheckResult:
    """Inputs in all samples; with layers, every quantized tensor on some."""
    if subject.input_ranges is None:
        watch = watch_inputs(subject)
        for feeds in subject.samples.batches(_BATCH):
            watch(feeds)
    inputs = subject.input_ranges or {}
    tensors: dict[str, Range] = {}
    if subject.layers:
        written, on_codes = dict(tensor_ranges(subject.graph)), dict(code_ranges(subject.graph, subject.light_float))
        seen = {name: span for name, span in subject.seen_ranges.items() if span.is_of(on_codes.get(name))}
        for name in seen:
            del on_codes[name]
        start = time.perf_counter()
        for feeds in subject.first(SAMPLES).batches(1):
            for spans, quantized in ((written, True), (on_codes, False)):
                names = tuple(spans)
                if not names:
                    continue
                for name, array in subject.exposed(names, quantized=quantized).run(feeds, names).items():
                    spans[name].add(array.astype(np.float32, copy=False))
            if time.perf_counter() - start > SECONDS:
                break
        tensors = seen | on_codes | written
    if not inputs and not tensors:
        return CheckResult(NAME, TITLE, "skipped", "No input of the model is quantized with a fixed range.")
    flagged = [(name, span, True) for name, span in inputs.items() if span.outside]
    flagged += [(name, span, False) for name, span in tensors.items() if span.share > _SHARE or span.excess > _FAR - 1]
    flagged.sort(key=lambda item: (not item[2], -item[1].share * item[1].excess))
    findings = tuple(_finding(name, span) for name, span, _ in flagged[:_LISTED])
    groups = ((inputs, "quantized input"), (tensors, "inner tensor"))
    what = " and ".join(counted(len(spans), noun) for spans, noun in groups if spans)
    if findings:
        summary = f"{len(flagged)} of {what} left the calibrated range, '{findings[0].subject}' the furthest."
    else:
        summary = f"{what} stayed within the calibrated range."
    values = {"inputs": len(inputs), "tensors": len(tensors), "outside": len(flagged)}
    state: State = "flagged" if findings else "ok"
    return CheckResult(NAME, TITLE, state, summary[0].upper() + summary[1:], findings, values, subject.samples.count)


def watch_inputs(subject: Subject) -> Callable[[Mapping[str, Array]], None]:
    """What looks at the inputs of a batch, for whoever reads all samples before the check would."""
    inputs: dict[str, Range] = {}

    def watch(feeds: Mapping[str, Array]) -> None:
        if subject.input_ranges is not inputs:
            inputs.update(input_ranges(subject.graph))
            subject.input_ranges = inputs
        for name, span in inputs.items():
            if name in feeds:
                span.add(feeds[name].astype(np.float32, copy=False))

    return watch


def watch_layers(subject: Subject) -> Callable[[InputTally], None]:
    """What takes over what the attribution of noise saw of the float model's tensors, so that nobody runs it again."""

    def watch(tally: InputTally) -> None:
        params, statistics = tally.operand.params, tally.statistics
        if params is None or not statistics.finite or statistics.pos_inf or statistics.neg_inf:
            return  # a range of the moment; nothing came; or infinities, which statistics count but do not keep
        span = Range(params.low, params.high, float(params.scale))
        span.least, span.most = statistics.minimum, statistics.maximum
        span.outside, span.elements = tally.outside, statistics.finite
        subject.seen_ranges[tally.operand.tensor] = span

    return watch


def _finding(name: str, span: Range) -> Finding:
    text = (
        f"values from {span.least:.6g} to {span.most:.6g}, calibrated for {span.low:.6g} to {span.high:.6g}: "
        f"{span.share:.2%} outside, by up to {span.excess:.2f} times the range"
    )
    values = {
        "least": span.least,
        "most": span.most,
        "low": span.low,
        "high": span.high,
        "share": span.share,
        "excess": span.excess,
    }
    return Finding(name, text, f"--method '{name}=minmax' and calibration samples like these", values)


def input_ranges(view: GraphView) -> dict[str, Range]:
    """The range of each float input that is quantized, perhaps after operators that only move values."""
    names = {value.name for value in view.graph.input if value.name not in view.tensors}
    found: dict[str, Range] = {}
    for node, span in _quantizers(view):
        value = node.input[0]
        source = view.producer.get(value)
        while source is not None and source.op_type in _MOVERS:
            value = source.input[0]
            source = view.producer.get(value)
        if value in names and (value not in found or span.high - span.low > found[value].high - found[value].low):
            found[value] = span
    return found


def tensor_ranges(view: GraphView) -> Iterator[tuple[str, Range]]:
    """The range of each float tensor inside that a QuantizeLinear reads; the widest where there are several."""
    inputs = {value.name for value in view.graph.input}
    found: dict[str, Range] = {}
    for node, span in _quantizers(view):
        name = node.input[0]
        if name in inputs or name in view.tensors:
            continue
        if name not in found or span.high - span.low > found[name].high - found[name].low:
            found[name] = span
    yield from found.items()


def _quantizers(view: GraphView) -> Iterator[tuple[onnx.NodeProto, Range]]:
    """QuantizeLinear nodes to integers with one constant scale."""
    for node in view.graph.node:
        if node.op_type == "QuantizeLinear" and node.domain in ("", "ai.onnx"):
            output = next((a.i for a in node.attribute if a.name == "output_dtype"), 0)
            span = _range(view, node.input[1], node.input[2] if len(node.input) > 2 else "", output)
            if span is not None:
                yield node, span


def _range(view: GraphView, scale_name: str, zero_name: str, dtype: int) -> Range | None:
    """What codes with one constant scale and zero point stand for; None if they are not so."""
    from onnx import numpy_helper

    from qtool.dtypes import BY_ONNX

    scale, zero = view.tensors.get(scale_name), view.tensors.get(zero_name)
    if scale is None or math.prod(scale.dims) != 1 or (zero_name and zero is None):
        return None
    kind = BY_ONNX.get(zero.data_type if zero is not None else dtype or 2)
    if kind is None or not kind.is_integer:
        return None
    step = float(numpy_helper.to_array(scale).reshape(()))
    at = 0 if zero is None else int(numpy_helper.to_array(zero).reshape(()))
    return Range((kind.qmin - at) * step, (kind.qmax - at) * step, step)


def code_ranges(view: GraphView, float_model: onnx.ModelProto) -> Iterator[tuple[str, Range]]:
    """The range of each result of QLinearMatMul and QLinearConv, by the float model's name of it."""
    known = {name for node in float_model.graph.node for name in node.output}
    for node in view.graph.node:
        name = node.output[0].removesuffix("_quantized") if node.output else ""
        if node.op_type in ("QLinearMatMul", "QLinearConv") and name in known:
            span = _range(view, node.input[6], node.input[7], 0)
            if span is not None:
                yield name, span

"""Branches of If, put in the place of the If, so that what they compute is looked at as the rest of a model is.

Which branch runs is for the condition to say, and the samples are those of the data: the float model computes the
conditions of the first samples, and the most of them that agree are looked at. Quantized operators of the other
branches, and those in the bodies of Loop and Scan, whose turns are not told apart, are named with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qtool.calibrate.segments import SegmentedModel, SourceGraph
from qtool.evaluate.attribution.graph import is_op
from qtool.evaluate.attribution.units import MADE

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples

MOST_SAMPLES = 64
"""Whose conditions are computed."""
_NUMBERED = re.compile(r"^(.+)_\d+$")
_LONGEST = 8  # nodes that a quantized operator absorbs
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_CODES = ("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear")
_INTEGER = re.compile(
    r"^(QLinear\w+|\w+Integer|MatMulNBits|DynamicQuantizeLSTM|QAttention|QGemm|GatherBlockQuantized)$"
)


@dataclass
class Inlined:
    """What was done.

    Attributes:
        samples: The samples to look at.
        single: Whether they must be fed one by one, as their conditions were.
        left_out: (node, reason) of quantized operators that are still in bodies.
    """

    samples: Samples
    single: bool = False
    left_out: list[tuple[str, str]] = field(default_factory=list)


def inline_branches(reference: SourceGraph, candidate: SourceGraph, samples: Samples, most: int | None) -> Inlined:
    """Put the branches that run in the place of their Ifs, in both models, as far as quantized operators are in them.

    Args:
        reference: The float model; changed in place.
        candidate: The quantized model; changed in place.
        samples: Inputs of the float model.
        most: Samples to look at, at most.

    Raises:
        ModelError: If the conditions cannot be computed.
    """
    done = Inlined(samples)
    reasons: dict[str, str] = {}  # If of the candidate that stays -> why
    while pairs := _pairs(reference, candidate, reasons):
        votes = _votes(reference, [ours.input[0] for ours, _ in pairs], done, most)
        if votes is None:
            reasons |= {_label(one): f"the condition of '{_label(one)}' is not computed by nodes" for _, one in pairs}
            continue
        counts = Counter(votes)
        choice, agreed = counts.most_common(1)[0]
        numbers = [number for number, vote in enumerate(votes) if vote == choice]
        for column, ((ours, theirs), taken) in enumerate(zip(pairs, choice, strict=True)):
            other = sum(vote[column] != taken for vote in votes)
            words = "no sample takes" if not other else f"{other} of {len(votes)} samples take"
            rest = "" if not other else f"; the {agreed} that agree with most were looked at"
            reason = f"it is in a branch of '{_label(theirs)}' that {words}{rest}"
            branches = _branches(theirs)
            done.left_out += [(name, reason) for name in _quantized(branches[not taken])]
            known = _inline(reference.proto.graph, ours.output[0], taken=taken)
            inside = _inline(candidate.proto.graph, theirs.output[0], taken=taken)
            _like_reference(candidate.proto.graph, inside, known, reference)
        done.samples, done.single = done.samples.pick(numbers), True
    for node in candidate.proto.graph.node:
        for body in _bodies(node):
            reason = reasons.get(_label(node)) or f"it is in the body of {node.op_type} '{_label(node)}'"
            done.left_out += [(name, reason) for name in _quantized(body)]
    return done


def _pairs(
    reference: SourceGraph, candidate: SourceGraph, reasons: dict[str, str]
) -> list[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """The Ifs of both models that have quantized operators in a branch, and no reason yet to stay."""
    theirs = [
        node
        for node in candidate.proto.graph.node
        if is_op(node, "If") and _label(node) not in reasons and any(True for b in _bodies(node) for _ in _quantized(b))
    ]
    if not theirs:
        return []
    ifs = [node for node in reference.proto.graph.node if is_op(node, "If")]
    names = {node.name: node for node in ifs if node.name}
    outputs = {node.output[0]: node for node in ifs}
    found = []
    for node in theirs:
        ours = names.get(node.name) or outputs.get(node.output[0])
        if ours is None:
            reasons[_label(node)] = f"it is in a branch of '{_label(node)}', which the float model has not"
        else:
            found.append((ours, node))
    return found


def _votes(
    reference: SourceGraph, conditions: Sequence[str], done: Inlined, most: int | None
) -> list[tuple[bool, ...]] | None:
    """What each of the first samples, or each whole batch that the model fixes, makes of the conditions."""
    unique = list(dict.fromkeys(conditions))
    made = {name for node in reference.proto.graph.node for name in node.output}
    known = {
        *made,
        *(v.name for v in reference.proto.graph.input),
        *(t.name for t in reference.proto.graph.initializer),
    }
    if not known >= set(unique):
        return None
    model = SegmentedModel(reference, unique, per_segment=1, strict=False, observed=("bool",))
    fixed = {name: model.constant(name) for name in model.constants}
    samples = done.samples
    size = samples.fixed_batch or 1
    count = min(samples.count, max(size, min(most or MOST_SAMPLES, MOST_SAMPLES) // size * size))
    votes: list[tuple[bool, ...]] = []
    for rows, feeds in samples.slice(0, count).counted_batches(size):
        values = {**fixed, **{name: feeds[name] for name in model.fed}}
        for arrays, _ in model.steps(feeds):
            values |= arrays
        if not values.keys() >= set(unique):
            return None
        votes += [tuple(bool(np.asarray(values[name]).reshape(-1)[0]) for name in conditions)] * rows
    return votes


def _label(node: onnx.NodeProto) -> str:
    return node.name or str(node.output[0])


def _branches(node: onnx.NodeProto) -> dict[bool, onnx.GraphProto]:
    graphs = {attribute.name: attribute.g for attribute in node.attribute}
    return {True: graphs["then_branch"], False: graphs["else_branch"]}


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def _quantized(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of the quantized operators of a body and of the bodies in it."""
    dequantized = {name for node in graph.node if is_op(node, "DequantizeLinear") for name in node.output}
    quantized = {name for node in graph.node if is_op(node, "QuantizeLinear") for name in node.input[:1]}
    for node in graph.node:
        of_codes = dequantized & {*node.input} and (quantized & {*node.output} or is_op(node, *_PRODUCTS))
        if _INTEGER.match(node.op_type) or (of_codes and node.op_type not in _CODES):
            yield node.name or node.output[0]
        for body in _bodies(node):
            yield from _quantized(body)


def _inline(graph: onnx.GraphProto, output: str, *, taken: bool) -> set[str]:
    """Put a branch in the place of its If; names that something else has already are changed. The names in it.

    Args:
        graph: The top graph.
        output: First output of the If.
        taken: Which branch.
    """
    import onnx

    place = next(index for index, node in enumerate(graph.node) if output in node.output)
    node = graph.node[place]
    body = onnx.GraphProto()
    body.CopyFrom(_branches(node)[taken])
    others = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    others |= {name for other in graph.node for name in other.output}
    defined = [*(t.name for t in body.initializer), *(name for inner in body.node for name in inner.output if name)]
    renamed = {name: f"{node.name or node.output[0]}/{name}" for name in defined if name in others}
    if renamed:
        _rename(body, renamed)
    before, after = list(graph.node)[:place], list(graph.node)[place + 1 :]
    ends = [
        onnx.NodeProto(op_type="Identity", name=f"{node.name}:{index}", input=[inner.name], output=[outer])
        for index, (inner, outer) in enumerate(zip(body.output, node.output, strict=True))
        if outer
    ]
    nodes = [*before, *body.node, *ends, *after]
    copies = [onnx.NodeProto.FromString(one.SerializeToString()) for one in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    graph.initializer.extend(body.initializer)
    graph.sparse_initializer.extend(body.sparse_initializer)
    graph.value_info.extend(body.value_info)
    return {renamed.get(name, name) for name in defined}


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Other names for values of a graph, also where bodies read them."""
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
        for body in _bodies(node):
            _rename(body, renamed)
    for value in (*graph.initializer, *graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def _like_reference(graph: onnx.GraphProto, inside: set[str], known: set[str], reference: SourceGraph) -> None:
    """Take the numbers off names that qtool gave values whose name another branch had as well.

    A name counts as such if the float model has it without the number in the same branch, and computes it with, or
    close behind, the node of the same name.
    """
    nodes = {node.name: node for node in reference.proto.graph.node if node.name}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in reference.proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    taken = {name for node in graph.node for name in node.output} | {t.name for t in graph.initializer}
    stems: dict[str, str] = {}
    for node in graph.node:
        ours = nodes.get(node.name)
        for name in node.output if ours is not None else ():
            made = MADE.match(name)
            base = made[1] if made else name
            numbered = _NUMBERED.match(base)
            if name in inside and base not in known and numbered and numbered[1] in known and numbered[1] not in taken:
                assert ours is not None, "Bug: a node without a counterpart"
                if numbered[1] in _behind(ours, readers):
                    stems[base] = numbered[1]
    renamed = {}
    for name in sorted(inside):
        made = MADE.match(name)
        base = made[1] if made and name not in stems else name
        if base in stems and stems[base] + name[len(base) :] not in taken:
            renamed[name] = stems[base] + name[len(base) :]
    if renamed:
        _rename(graph, renamed)


def _behind(node: onnx.NodeProto, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> set[str]:
    """What a node computes, and what a chain of single readers makes of it."""
    found: set[str] = set()
    for _ in range(_LONGEST):
        found.update(node.output)
        after = readers.get(node.output[0], [])
        if len(after) != 1:
            break
        node = after[0]
    return found

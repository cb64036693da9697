"""Bring a model into the form that the later stages read, by exact float graph surgery.

The order matters: names before anything records them, functions before the converter (which drops them), constants
before the folds, dead branches before anything looks at a weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qtool.errors import ModelError
from qtool.prepare.eliminate_identity import EliminateIdentityPass
from qtool.prepare.fold_batch_norm import FoldBatchNormPass
from qtool.prepare.fold_constants import FoldConstantsPass
from qtool.prepare.fold_conv_affine import FoldConvAddPass, FoldConvMulPass
from qtool.prepare.fold_pad import FoldPadPass
from qtool.prepare.graph_edits import PreparePass, bodies
from qtool.prepare.hide_initializer_inputs import HideInitializerInputsPass
from qtool.prepare.infer_shapes import InferShapesPass
from qtool.prepare.inline_functions import InlineFunctionsPass
from qtool.prepare.lift_constants import LiftConstantsPass
from qtool.prepare.load import SORTED_KEY
from qtool.prepare.load_attribute_tensors import LoadAttributeTensorsPass
from qtool.prepare.localize_captures import LocalizeCapturesPass
from qtool.prepare.lower_opset import LowerOpsetPass
from qtool.prepare.merge_clamps import MergeClampsPass
from qtool.prepare.merge_opset_imports import MergeOpsetImportsPass
from qtool.prepare.name_nodes import NameNodesPass
from qtool.prepare.normalize_gemm import NormalizeGemmPass
from qtool.prepare.normalize_pool import NormalizePoolPass
from qtool.prepare.normalize_resize import NormalizeResizePass
from qtool.prepare.raise_opset import RaiseOpsetPass
from qtool.prepare.remove_dead_nodes import RemoveDeadNodesPass
from qtool.prepare.share_constants import ShareConstantsPass


@dataclass(frozen=True)
class SourceNode:
    """A node of the user's model, before any rewrite.

    Attributes:
        name: Its name; unnamed nodes have the name that ``qtool inspect`` shows.
        op_type: The operator.
        domain: "" for ``ai.onnx``.
        scope: "" for the top graph, else the way to the body: ``if_1/then_branch``.
    """

    name: str
    op_type: str
    domain: str
    scope: str


@dataclass(frozen=True)
class Prepared:
    """A prepared model.

    Attributes:
        model: A new model; it shares weights with the one it was made from. A node that stands for more than itself
            says so in ``metadata_props["qtool.origin"]``, a JSON list of the user's node names.
        source_nodes: The user's nodes in graph order, each followed by the nodes of its bodies.
        actions: What was done, in human lines.
        obstacle: Why nothing that is quantized could be written into this model (its opset cannot be changed), or None.
            It is the caller's to raise, once it is known that something would be quantized.
    """

    model: ir.Model
    source_nodes: tuple[SourceNode, ...]
    actions: tuple[str, ...]
    obstacle: ModelError | None = None


def prepare(
    model: ir.Model,
    *,
    min_opset: int,
    min_ir: int,
    max_opset: int | None = None,
    bodies: bool = False,
    captures: bool = False,
    optional: bool = True,
    inline: Collection[str] | None = None,
) -> Prepared:
    """Normalize a copy of the model.

    Args:
        model: Not changed.
        min_opset: The lowest ``ai.onnx`` opset of the result; a higher one is kept.
        min_ir: The lowest IR version of the result; a higher one is kept.
        max_opset: The highest ``ai.onnx`` opset of the result; None for no limit.
        bodies: Whether the bodies of If, Loop and Scan are brought into form, too, and their nodes and values get names
            of their own: for plans that quantize inside them.
        captures: Whether the branches of If get values of their own for what they capture: for plans that need ranges
            of activations inside them.
        optional: Whether passes run that only make the graph smaller or better to quantize: constants are evaluated
            and folded into weights, identities and dead nodes go, calls of local functions are inlined, Gemms are
            normalized. What a plan cannot do without runs anyway: names, one opset import per domain, constants as
            initializers, the opset and IR version that quantized operators need, inferred shapes, and the forms of
            pools and Resize that the runtime takes.
        inline: Operators of ``ai.onnx`` for whose sake a call of a local function is inlined, where the function holds
            one; None for all calls. Where the opset changes, all calls are: functions cannot be converted.

    Raises:
        ModelError: If the model cannot be copied.
    """
    try:
        copy = model.clone()
    except RuntimeError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ModelError(f"The model's graph cannot be walked in order: {reason[:200]}") from error
    for node in copy.graph:
        for value in node.outputs:
            value.const_value = None  # another tool's remark; renaming the value would rename the caller's tensor
    naming = NameNodesPass(bodies=bodies)
    naming(copy)
    source_nodes = tuple(_walk(copy.graph, ""))
    passes: list[PreparePass] = [naming]

    def run(*steps: PreparePass) -> bool:
        """Run steps in order; whether any of them changed the model."""
        for step in steps:
            if step not in passes:
                passes.append(step)
        modified = [step(copy).modified for step in steps]  # a list: every step runs
        return any(modified)

    lift, dead = LiftConstantsPass(bodies=bodies), RemoveDeadNodesPass(bodies=bodies)
    shapes = InferShapesPass(bodies=bodies)
    run(MergeOpsetImportsPass())
    if optional:
        given = copy.graph.opset_imports.get("", min_opset)
        kept = min_opset <= given <= (given if max_opset is None else max_opset)
        run(InlineFunctionsPass(inline if kept else None))
    run(HideInitializerInputsPass(), lift, LoadAttributeTensorsPass(), shapes)
    obstacle = None
    try:
        if max_opset is not None:
            run(LowerOpsetPass(max_opset=max_opset))
        if run(RaiseOpsetPass(min_opset=min_opset, min_ir=min_ir)):
            run(lift, *([naming] if bodies else []))  # the converter adds nodes to bodies
    except ModelError as error:
        obstacle = error
    if optional:
        run(dead, EliminateIdentityPass(bodies=bodies), FoldConstantsPass(bodies=bodies), dead, shapes)
        folds = (FoldBatchNormPass(bodies=bodies), FoldConvMulPass(bodies=bodies), FoldConvAddPass(bodies=bodies))
        while run(*folds):
            pass
        run(FoldPadPass(bodies=bodies), MergeClampsPass(bodies=bodies), NormalizeGemmPass(bodies=bodies))
        run(*([ShareConstantsPass()] if bodies else []))
    run(NormalizePoolPass(bodies=bodies), NormalizeResizePass(bodies=bodies), *([dead] if optional else []))
    run(*([LocalizeCapturesPass()] if captures else []), shapes)
    actions = dict.fromkeys(["put the nodes in order"] if SORTED_KEY in model.meta else [])
    actions |= dict.fromkeys(line for step in passes for line in step.actions)
    return Prepared(copy, source_nodes, tuple(actions), obstacle)


def _walk(graph: ir.Graph, scope: str) -> Iterator[SourceNode]:
    for number, node in enumerate(graph):
        name = node.name or f"node_{node.op_type}_{number}"
        yield SourceNode(name, node.op_type, node.domain, scope)
        for label, body in bodies(node):
            yield from _walk(body, f"{scope}/{name}/{label}" if scope else f"{name}/{label}")

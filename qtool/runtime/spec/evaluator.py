"""Walks graphs, subgraphs and functions: ``onnx.reference``, with qtool's operators, that lets go of what is done with.

``onnx.reference`` builds every nested graph with the class of the outer one, so this class is in charge at all depths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction, OpRun

from qtool.errors import QtoolError


class NodeError(Exception):
    """A node failed; one line."""


class Evaluator(ReferenceEvaluator):
    """A graph, ready to run.

    Constants are decoded once, here: numpy arrays, with one element per item whatever the type.
    """

    operators: tuple[type[OpRun], ...] = ()
    """Set by :func:`with_operators`; not an argument, because functions are built without arguments."""

    def __init__(self, proto: Any, **options: Any) -> None:
        super().__init__(proto, **options | {"new_ops": list(self.operators)})

    def _init(self) -> None:
        super()._init()
        nodes = self._prepare_weights()
        last = {name: index for index, node in enumerate(nodes) for name in _names(node)}
        kept = {"", *self.output_names_}
        self._done: list[tuple[str, ...]] = [() for _ in self.rt_nodes_]
        for name, index in last.items():
            if name not in kept:
                self._done[index] += (name,)

    def _prepare_weights(self) -> list[onnx.NodeProto]:
        """Dequantize constants here and once, and tell the operators that pack their weights which are constant.

        Returns:
            The nodes that are left, one per item of ``rt_nodes_``.
        """
        constants = self.rt_inits_.keys() - set(self.input_names_)  # a caller may replace those that are inputs
        left: list[tuple[Any, onnx.NodeProto]] = []
        for runner, node in zip(self.rt_nodes_, self.nodes_, strict=True):
            if (
                node.op_type == "DequantizeLinear"
                and not node.domain
                and constants.issuperset(filter(None, node.input))
            ):
                arrays = (self.rt_inits_[name] if name else None for name in node.input)
                (self.rt_inits_[node.output[0]],) = _run(runner, arrays, {})
            else:
                left.append((runner, node))
                position = getattr(runner, "weight", -1)
                if 0 <= position < len(node.input) and node.input[position] in constants:
                    runner.set_weight(self.rt_inits_[node.input[position]])
        self.rt_nodes_ = [runner for runner, _ in left]
        return [node for _, node in left]

    def run(
        self,
        output_names: list[str] | None,
        feed_inputs: dict[str, Any],
        attributes: dict[str, Any] | None = None,
        intermediate: bool = False,
        check_shape_annotations: bool | None = None,
        _bindings: Any = None,
    ) -> list[Any]:
        """Run the graph.

        Args:
            output_names: Wanted outputs of the graph; None is all.
            feed_inputs: Inputs, and for a subgraph every value of the graphs around it.
            attributes: Of a function's call.
            intermediate: Not supported: intermediate values are gone by the end.
            check_shape_annotations: Not supported.

        Raises:
            NodeError: If a node fails.
        """
        assert not intermediate, "Bug: intermediate values are not kept"
        assert not check_shape_annotations, "Bug: shapes are not checked"
        results: dict[str, Any] = {"": None, **self.rt_inits_, **feed_inputs}
        for node, done in zip(self.rt_nodes_, self._done, strict=True):
            options: dict[str, Any] = {"context": results} if node.need_context() else {}
            if node.has_linked_attribute and attributes:
                options["linked_attributes"] = attributes
            outputs = _run(node, (results[name] for name in node.input), options)
            results.update(zip(node.output, outputs, strict=False))
            results[""] = None
            for name in done:
                results.pop(name, None)
        return [results[name] for name in (self.output_names if output_names is None else output_names)]


def with_operators(operators: list[type[OpRun]]) -> type[Evaluator]:
    """An evaluator that has these operators in its graph, its subgraphs and its functions."""
    return type("Evaluator", (Evaluator,), {"operators": tuple(operators)})


def _run(node: Any, inputs: Iterable[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    try:
        outputs: tuple[Any, ...] = node.run(*inputs, **options)
    except NodeError:
        raise  # the node inside says more
    except Exception as error:  # onnx.reference raises whatever NumPy raised
        raise NodeError(f"node {_title(node)}: {_line(error)}") from error
    return outputs


def _names(node: onnx.NodeProto) -> Iterator[str]:
    """Every name that a node reads or writes; for a subgraph, every name in it: more than it takes from outside."""
    yield from node.input
    yield from node.output
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _names(inner)


def _title(node: Any) -> str:
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if isinstance(node, OpFunction) or not node.onnx_node.name:
        return f"{kind} that gives '{next(iter(node.output), '')}'"
    return f"'{node.onnx_node.name}' ({kind})"


def _line(error: BaseException) -> str:
    """What went wrong, on one line; onnx.reference hides the cause of TypeErrors behind a list of types."""
    if isinstance(error, TypeError) and error.__cause__ is not None:
        error = error.__cause__
    text = error.message if isinstance(error, QtoolError) else " ".join(str(error).split())
    return text or type(error).__name__

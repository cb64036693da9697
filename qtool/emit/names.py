"""One allocator makes every new name of a graph; names that exist, in whatever style, never break it."""

from __future__ import annotations

import onnx_ir as ir


class NameAllocator:
    """Fresh value and node names for one graph, subgraphs included (their scopes see the outer names)."""

    def __init__(self, graph: ir.Graph) -> None:
        self._values: set[str] = {v.name or "" for v in graph.inputs} | set(graph.initializers)
        self._nodes: set[str] = set()
        for node in graph.all_nodes():
            self._nodes.add(node.name or "")
            self._values.update(o.name or "" for o in node.outputs)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    body = attribute.as_graph()
                    self._values.update(v.name or "" for v in body.inputs)
                    self._values.update(body.initializers)

    def value(self, base: str) -> str:
        """A value name that nothing has, ``base`` itself if it is free."""
        return _fresh(base, self._values)

    def node(self, base: str) -> str:
        """A node name that nothing has, ``base`` itself if it is free."""
        return _fresh(base, self._nodes)


def _fresh(base: str, taken: set[str]) -> str:
    name, count = base, 0
    while not name or name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name

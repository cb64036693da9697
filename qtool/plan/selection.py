"""Which nodes the user wants quantized: --include and --exclude by name, glob or op:Type.

Names and operator types are those of the user's model. A prepared node stands for one or several of its nodes (a Conv
with a folded BatchNormalization): it is selected by any of its origins.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.errors import ConfigError
from qtool.prepare.graph_edits import origin_of


class Selection:
    """The effect of the include and exclude patterns on one model.

    Args:
        config: Holds the patterns.
        nodes: (name, op_type) of every node of the user's model.

    Raises:
        ConfigError: If a pattern matches nothing; the message gives the nearest names.
    """

    def __init__(self, config: QuantConfig, nodes: Sequence[tuple[str, str]]) -> None:
        self._include = config.include
        self._exclude = config.exclude
        self._types = dict(nodes)
        types = sorted({op for _, op in nodes})
        names = [name for name, _ in nodes]
        for option, patterns in (("--include", self._include), ("--exclude", self._exclude)):
            for pattern in patterns:
                if not any(_matches(pattern, name, op) for name, op in nodes):
                    raise ConfigError(
                        f"{option} '{pattern}' matches no node of the model.",
                        hint=_nearest(pattern, names, types),
                    )

    def names(self, node: ir.Node) -> bool:
        """Whether the user asks for a node with --include."""
        named = [(name, self._types.get(name, node.op_type)) for name in origin_of(node)]
        return any(_matches(pattern, name, op) for pattern in self._include for name, op in named)

    def reason_to_skip(self, node: ir.Node) -> str | None:
        """Why the user does not want a node quantized, or None if it is selected."""
        named = [(name, self._types.get(name, node.op_type)) for name in origin_of(node)]
        for pattern in self._exclude:
            if any(_matches(pattern, name, op) for name, op in named):
                return f"excluded by '{pattern}'"
        if self._include and not any(_matches(p, name, op) for p in self._include for name, op in named):
            return "not among the included nodes"
        return None


def _matches(pattern: str, name: str, op_type: str) -> bool:
    if pattern.startswith("op:"):
        return fnmatchcase(op_type, pattern[3:])
    return name == pattern or fnmatchcase(name, pattern)


def _nearest(pattern: str, names: Sequence[str], types: Sequence[str]) -> str:
    if pattern.startswith("op:"):
        near = difflib.get_close_matches(pattern[3:], types, n=3, cutoff=0.4)
        return "Nearest: " + ", ".join(f"op:{t}" for t in near or types[:8]) + "."
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    if pattern in types:
        return f"Did you mean 'op:{pattern}'?"
    if near:
        return "Nearest: " + ", ".join(f"'{n}'" for n in near) + "."
    return "List the names with 'qtool inspect MODEL'; patterns are names, globs, or op:Type."

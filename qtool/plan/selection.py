"""Which nodes the user wants quantized, and how: --include, --exclude and overrides by name, glob, op:Type or domain:.

Names, operator types and domains are those of the user's model. A prepared node stands for one or several of its nodes
(a Conv with a folded BatchNormalization): it is selected by any of its origins.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import onnx_ir as ir

from qtool.config import QuantConfig
from qtool.errors import ConfigError
from qtool.overrides import Override
from qtool.prepare.graph_edits import origin_of

_STANDARD = "ai.onnx"


class _Node(NamedTuple):
    """A node of the user's model, as patterns see it."""

    name: str
    op_type: str
    domain: str = _STANDARD


class Selection:
    """The effect of the include and exclude patterns, and of overrides, on one model.

    Args:
        config: Holds the patterns.
        nodes: (name, op_type) or (name, op_type, domain) of every node of the user's model.

    Raises:
        ConfigError: If a pattern matches nothing; the message gives the nearest names.
    """

    def __init__(self, config: QuantConfig, nodes: Sequence[tuple[str, ...]]) -> None:
        self._config = config
        self._include = config.include
        self._exclude = config.exclude
        found = [_Node(node[0], node[1], (node[2] if len(node) > 2 else "") or _STANDARD) for node in nodes]
        self._nodes = {node.name: node for node in found}
        self._configs: dict[tuple[int, ...], tuple[Override | None, QuantConfig]] = {}
        options = [("--include", self._include), ("--exclude", self._exclude)]
        options += [("Override of", override.nodes) for override in config.overrides]
        for option, patterns in options:
            for pattern in patterns:
                if not any(_matches(pattern, node) for node in found):
                    raise ConfigError(
                        f"{option} '{pattern}' matches no node of the model.", hint=_nearest(pattern, found)
                    )

    def names(self, node: ir.Node) -> bool:
        """Whether the user asks for a node with --include."""
        return self._any(self._include, node)

    def reason_to_skip(self, node: ir.Node) -> str | None:
        """Why the user does not want a node quantized, or None if it is selected."""
        for pattern in self._exclude:
            if self._any((pattern,), node):
                return f"excluded by '{pattern}'"
        if self._include and not self.names(node):
            return "not among the included nodes"
        for override in self._config.overrides:
            if override.keep_float and self._any(override.nodes, node):
                pattern = next(p for p in override.nodes if self._any((p,), node))
                return f"kept in float by the override of '{pattern}'"
        return None

    def override_of(self, node: ir.Node) -> Override | None:
        """What overrides say about a node, all of them together; None if there are none."""
        return self._settings(node)[0]

    def config_for(self, node: ir.Node) -> QuantConfig:
        """The settings of a node.

        Raises:
            ConfigError: If overrides that match it do not go together.
        """
        return self._settings(node)[1]

    def matches(self, override: Override, node: ir.Node) -> bool:
        """Whether an override is about a node."""
        return self._any(override.nodes, node)

    def _settings(self, node: ir.Node) -> tuple[Override | None, QuantConfig]:
        given = [(i, o) for i, o in enumerate(self._config.overrides) if not o.keep_float]
        key = tuple(i for i, override in given if self.matches(override, node)) if given else ()
        if key not in self._configs:
            merged: Override | None = None
            for index, override in given:
                if index in key:
                    merged = override if merged is None else merged.under(override)
            try:
                config = self._config if merged is None else self._config.with_override(merged)
            except ConfigError as error:
                raise ConfigError(f"Overrides of '{node.name}': {error.message}", hint=error.hint) from error
            self._configs[key] = merged, config
        return self._configs[key]

    def _any(self, patterns: Sequence[str], node: ir.Node) -> bool:
        if not patterns:
            return False
        named = [
            self._nodes.get(name) or _Node(name, node.op_type, node.domain or _STANDARD) for name in origin_of(node)
        ]
        return any(_matches(pattern, one) for pattern in patterns for one in named)


def _matches(pattern: str, node: _Node) -> bool:
    if pattern.startswith("op:"):
        return fnmatchcase(node.op_type, pattern[3:])
    if pattern.startswith("domain:"):
        return fnmatchcase(node.domain, pattern[7:] or _STANDARD)
    return node.name == pattern or fnmatchcase(node.name, pattern)


def _nearest(pattern: str, nodes: Sequence[_Node]) -> str:
    types, domains = sorted({node.op_type for node in nodes}), sorted({node.domain for node in nodes})
    if pattern.startswith("op:"):
        near = difflib.get_close_matches(pattern[3:], types, n=3, cutoff=0.4)
        return "Nearest: " + ", ".join(f"op:{t}" for t in near or types[:8]) + "."
    if pattern.startswith("domain:"):
        return "The model has " + ", ".join(f"domain:{d}" for d in domains) + "."
    near = difflib.get_close_matches(pattern, [node.name for node in nodes], n=3, cutoff=0.4)
    if pattern in types:
        return f"Did you mean 'op:{pattern}'?"
    if pattern in domains:
        return f"Did you mean 'domain:{pattern}'?"
    if near:
        return "Nearest: " + ", ".join(f"'{n}'" for n in near) + "."
    return "List the names with 'qtool inspect MODEL'; patterns are names, globs, op:Type or domain:NAME."

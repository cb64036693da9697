"""Settings of single nodes: what ``[[quantize.override]]`` of a TOML file and ``--override`` say.

[[quantize.override]]
nodes = ["/head/*", "op:MatMul"]    # names, globs, op:Type, domain:NAME, as for include and exclude
weights = "int8"                    # any of the keys below
per_channel = false
activations = "uint16"
symmetric = true
method = "percentile:99.9"
format = "qdq"

[[quantize.override]]
nodes = ["/detect/*"]
float = true
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qtool.errors import ConfigError

# key in a file -> the setting of all nodes that it stands in for
KEYS = {
    "weights": "weights",
    "per_channel": "per_channel",
    "block": "block",
    "activations": "activations",
    "symmetric": "symmetric_activations",
    "method": "method",
    "format": "format",
}
# what a mode has no use for
ACTIVATION_KEYS = ("activations", "symmetric", "method", "format")


@dataclass(frozen=True)
class Override:
    """Settings of the nodes that some patterns match; None for what is not said.

    Attributes:
        nodes: Names, globs, ``op:Type`` or ``domain:NAME`` of the user's model.
        weights: Element type of the nodes' weights.
        per_channel: Whether those have a scale per output channel.
        block: Elements per scale, in weight-only mode.
        activations: Element type of the activations that the nodes read.
        symmetric: Whether those have the constant zero point.
        method: Range method of those.
        format: Form that the nodes are written in.
        keep_float: Leave the nodes in float; ``float`` in a file.
    """

    nodes: tuple[str, ...]
    weights: str | None = None
    per_channel: bool | None = None
    block: int | None = None
    activations: str | None = None
    symmetric: bool | None = None
    method: str | None = None
    format: str | None = None
    keep_float: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """Key -> value of everything that is said, ``float`` aside."""
        return {key: getattr(self, key) for key in KEYS if getattr(self, key) is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The same under the names that settings of all nodes have."""
        return {KEYS[key]: value for key, value in self.given.items()}

    def under(self, later: Override) -> Override:
        """Both together; what the later one says counts."""
        changes: dict[str, Any] = later.given
        return replace(self, **changes, keep_float=self.keep_float or later.keep_float)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, and what a file would say."""
        return {"nodes": list(self.nodes)} | self.given | ({"float": True} if self.keep_float else {})

    def describe(self) -> str:
        """What it says, in one clause."""
        return ", ".join(f"{key} {str(value).lower()}" for key, value in self.given.items()) or "float"

    @property
    def subject(self) -> str:
        """How a message names it."""
        return f"Override of {', '.join(repr(pattern) for pattern in self.nodes)}"


def overrides_from(value: object) -> tuple[Override, ...]:
    """Overrides from tables of a file, mappings of a caller, or overrides.

    Raises:
        ConfigError: For what is no table, an unknown key, or a table without patterns or without settings.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigError(
            f"Option 'override' is {value!r}; expected tables of settings.", hint="Write [[quantize.override]]."
        )
    return tuple(item if isinstance(item, Override) else _from_table(item) for item in value)


def _from_table(table: object) -> Override:
    if not isinstance(table, Mapping):
        raise ConfigError(f"Option 'override' holds {table!r}; expected a table of settings.")
    known: dict[str, Any] = {}
    for key, value in table.items():
        name = str(key).replace("-", "_")
        name = "symmetric" if name == "symmetric_activations" else name
        if name in known:
            raise ConfigError(f"An override gives '{name}' twice.")
        known[name] = value
    nodes = known.pop("nodes", None)
    if isinstance(nodes, str):
        nodes = [nodes]
    if not isinstance(nodes, (list, tuple)) or not nodes or not all(isinstance(n, str) and n for n in nodes):
        raise ConfigError(
            f"An override has nodes {nodes!r}; expected a list of patterns.",
            hint="Patterns are names, globs, op:Type or domain:NAME.",
        )
    keep = known.pop("float", False)
    if not isinstance(keep, bool):
        raise ConfigError(f"Option 'float' of an override is {keep!r}; expected true or false.")
    for name in known:
        if name not in KEYS:
            raise ConfigError(
                f"Unknown option '{name}' in an override of {nodes[0]!r}; expected one of nodes, "
                f"{', '.join(KEYS)}, float."
            )
    override = Override(tuple(nodes), keep_float=keep, **known)
    if keep and known:
        raise ConfigError(
            f"{override.subject} leaves nodes in float and gives {', '.join(known)}; expected one or the other."
        )
    if not keep and not known:
        raise ConfigError(f"{override.subject} says nothing; expected one of {', '.join(KEYS)} or float.")
    return override


def parse_override(text: str) -> dict[str, Any]:
    """``PATTERN=KEY:VALUE[,KEY:VALUE]`` or ``PATTERN=float`` of the command line as a table.

    Raises:
        ConfigError: For another form.
    """
    pattern, equals, settings = text.rpartition("=")
    if not equals or not pattern or not settings:
        raise ConfigError(
            f"Override '{text}' has no settings; expected PATTERN=KEY:VALUE.",
            hint="For instance: --override '/head/*=weights:uint8,per_channel:false'.",
        )
    table: dict[str, Any] = {"nodes": [pattern]}
    for part in settings.split(","):
        key, colon, value = part.strip().partition(":")
        if key == "float" and not colon:
            value = "true"
        elif not colon or not value:
            raise ConfigError(f"Override '{text}' holds '{part}'; expected KEY:VALUE.")
        table[key] = {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)
    return table

"""The runtimes that a file can be made for: one file of data each; a new one is registered by being there.

This package is pure data and lies at the bottom: the configuration takes its defaults from it.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from qtool.errors import ConfigError
from qtool.targets.base import Target

DEFAULT_TARGET = "ort-x64"


def _registered() -> dict[str, Target]:
    found: dict[str, Target] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if info.name == "base":
            continue
        target = importlib.import_module(f"{__name__}.{info.name}").TARGET
        assert isinstance(target, Target), f"Bug: {info.name} holds no target"
        assert target.name == info.name.replace("_", "-"), f"Bug: {info.name} holds the target {target.name}"
        found[target.name] = target
    return {DEFAULT_TARGET: found.pop(DEFAULT_TARGET), **found}


TARGETS: dict[str, Target] = _registered()


def target(name: object) -> Target:
    """Look a target up.

    Raises:
        ConfigError: If there is none of that name; the message lists all, the hint the nearest.
    """
    if isinstance(name, str) and name in TARGETS:
        return TARGETS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), TARGETS, 3) if isinstance(name, str) else []
    raise ConfigError(
        f"Option 'target' is {name!r}; expected one of {', '.join(TARGETS)}.",
        hint=f"Did you mean {' or '.join(repr(one) for one in near)}?" if near else None,
    )

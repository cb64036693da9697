"""One handler per operator family; a new file in this package is registered by being there."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from qtool.plan.ops.base import Handler


@cache
def handlers() -> dict[str, Handler]:
    """Operator type -> handler, from every module of this package."""
    found: dict[str, Handler] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for member in vars(module).values():
            concrete = isinstance(member, type) and issubclass(member, Handler) and "op_types" in vars(member)
            if not concrete or member.__module__ != module.__name__:
                continue
            handler = member()
            for op_type in handler.op_types:
                assert op_type not in found, f"Bug: two handlers for {op_type}"
                found[op_type] = handler
    return found

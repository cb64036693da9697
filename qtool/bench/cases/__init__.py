"""The registry of cases. To add one, yield it from ``cases()`` of its file; a new file gets a line in ``_SOURCES``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from qtool.bench.cases import conv, elementwise, matmul, spec, statistics
from qtool.bench.cases.case import Case
from qtool.errors import ConfigError

_SOURCES: tuple[Callable[[], Iterator[Case]], ...] = (
    matmul.cases,
    conv.cases,
    elementwise.cases,
    statistics.cases,
    spec.cases,
)


def select(only: str | None = None, *, quick: bool = False) -> tuple[Case, ...]:
    """Cases in the order of the registry.

    Args:
        only: A shell pattern that the name must match; ``conv`` finds nothing, ``*conv*`` does.
        quick: Only the short list; a pattern selects from all.

    Raises:
        ConfigError: If the pattern matches no case.
    """
    found = tuple(case for source in _SOURCES for case in source())
    if only is not None:
        chosen = tuple(case for case in found if fnmatchcase(case.name, only))
        if not chosen:
            groups = ", ".join(dict.fromkeys(case.name.partition("/")[0] for case in found))
            raise ConfigError(
                f"No benchmark has a name that matches '{only}'; expected a shell pattern such as 'gemv*'.",
                hint=f"Names begin with one of {groups}.",
            )
        return chosen
    return tuple(case for case in found if case.quick) if quick else found

"""The limit that a call puts on the memory of the process."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from qtool.calibrate.budget import Budget

P = ParamSpec("P")
R = TypeVar("R")

_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


def keeps_limit(function: Callable[P, R]) -> Callable[P, R]:
    """A function that keeps the limit of its argument ``max_memory``, all the way: see :func:`check_limit`."""

    @wraps(function)
    def limited_function(*args: P.args, **kwargs: P.kwargs) -> R:
        limit = cast("int | None", kwargs.get("max_memory"))
        if limit is None:
            return function(*args, **kwargs)
        from qtool.calibrate.budget import limited

        with limited(limit) as budget:
            token = _budget.set(budget)
            try:
                return function(*args, **kwargs)
            finally:
                _budget.reset(token)

    return limited_function


def budget() -> Budget | None:
    """What the call may take; None if it has no limit."""
    return _budget.get()


def check_limit(stage: str) -> None:
    """Check that the process has kept the limit, and give back what it does not use, before the next stage.

    Args:
        stage: What was done since the last check, for the message.

    Raises:
        ConfigError: If it has not; the message has the real number.
    """
    held = _budget.get()
    if held is not None:
        held.require(stage)
        held.release()

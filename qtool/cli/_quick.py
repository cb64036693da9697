"""The arguments of a command without typer, where there is nothing to say about them.

Typer makes a validator of pydantic for each option: the import alone takes a twentieth of a second and 6 MB, a tenth
of what a small calibration takes. Arguments that are all known, each given once and of a plain form need no more than
to be sorted. Whatever else there is (help, a mistake, a variable of the environment, a rare type) is left to typer,
which has the words for it; the declarations are the same ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

import typer

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_FLAGS = (bool, bool | None)
_Setter = tuple[str, Callable[[str], Any] | None, bool]  # parameter, how its value is made, and of a flag which


class _UnusualError(Exception):
    """Something that typer is to look at."""


def parsed(command: Callable[..., Any], args: Sequence[str]) -> dict[str, Any] | None:
    """What to call a command with; None if typer is to decide.

    Args:
        command: A function whose parameters are declared with typer.
        args: Arguments behind its name.

    Raises:
        QtoolError: What a declared parser or callback raises.
    """
    try:
        return _parsed(command, list(args))
    except _UnusualError:
        return None


def _parsed(command: Callable[..., Any], args: list[str]) -> dict[str, Any]:
    hints = get_type_hints(command, include_extras=True)
    values: dict[str, Any] = {}
    options: dict[str, _Setter] = {}
    places: list[str] = []
    lists: set[str] = set()
    callbacks: dict[str, Callable[[Any], None]] = {}
    for name, parameter in signature(command).parameters.items():
        kind, info = hints[name].__origin__, hints[name].__metadata__[0]
        if isinstance(info, typer.models.ArgumentInfo):
            if kind is not Path:
                raise _UnusualError
            places.append(name)
            continue
        if info.envvar is not None and info.envvar in os.environ:
            raise _UnusualError
        values[name] = None if parameter.default is Parameter.empty else parameter.default
        if info.callback is not None:
            callbacks[name] = info.callback
        if kind == list[str] | None:
            lists.add(name)
        options |= _options(name, kind, info)
    given = _sorted(args, options, places, lists)
    for name, callback in callbacks.items():
        callback(given.get(name))
    return values | given


def _options(name: str, kind: Any, info: Any) -> Iterator[tuple[str, _Setter]]:
    """The spellings of an option."""
    declared = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    make = _maker(kind, info)
    for text in declared or [f"--{name.replace('_', '-')}"]:
        on, _, off = text.partition("/")
        yield on, (name, make, True)
        if off:
            yield off, (name, make, False)


def _maker(kind: Any, info: Any) -> Callable[[str], Any] | None:
    """How the value of an option is made of its text; None for a flag."""
    if kind in _FLAGS:
        return None
    if info.parser is not None:
        parser: Callable[[str], Any] = info.parser
        return parser
    if kind == int | None and info.max is None:
        return partial(_whole, info.min)
    if kind in (str, str | None, list[str] | None):
        return str
    return Path if kind == Path | None else _left_to_typer


def _left_to_typer(_: str) -> Any:
    raise _UnusualError


def _whole(least: int | None, text: str) -> int:
    if not _NUMBER.fullmatch(text) or (least is not None and int(text) < least):
        raise _UnusualError
    return int(text)


def _sorted(args: list[str], options: dict[str, _Setter], places: list[str], lists: set[str]) -> dict[str, Any]:
    """What is given of each parameter."""
    found: dict[str, Any] = {}
    making: list[tuple[str, Callable[[str], Any], str]] = []
    waiting = list(reversed(args))
    left = list(reversed(places))
    while waiting:
        arg = waiting.pop()
        if not arg.startswith("-") and arg and left:
            found[left.pop()] = Path(arg)
            continue
        spelled, equals, text = arg.partition("=") if arg.startswith("--") else (arg, "", "")
        if spelled not in options:
            raise _UnusualError
        name, make, on = options[spelled]
        if name in found and name not in lists:
            raise _UnusualError
        if make is None:
            if equals:
                raise _UnusualError
            found[name] = on
            continue
        if not equals:
            text = waiting.pop() if waiting else ""
        if not text or (text.startswith("-") and text != "-"):
            raise _UnusualError
        found.setdefault(name, [])
        making.append((name, make, text))
    if left:
        raise _UnusualError
    # a declared parser may raise for good: only when nothing is left to be said by typer
    making.sort(key=lambda one: not (one[1] is _left_to_typer or isinstance(one[1], partial)))
    for name, make, text in making:
        value = make(text)
        found[name] = [*found[name], value] if name in lists else value
    return found

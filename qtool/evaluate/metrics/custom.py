"""Metrics of the user's own: ``module:name`` names a function or an accumulator class.

A function ``(reference, candidate) -> float`` or ``(reference, candidate, labels) -> float`` is called once for each
output with everything that came out of both models, joined along axis 0: memory grows with the data. A class with
``update(reference, candidate[, labels])`` and ``result() -> float`` sees one batch after the other instead. Either may
carry the attributes ``higher_is_better``, ``unit`` and ``title``. What asks for labels is computed for the output that
they belong to; with ``labels=None`` as default it is computed for all.
"""

from __future__ import annotations

import importlib
import inspect
import numbers
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qtool.errors import ConfigError, QtoolError
from qtool.evaluate.metrics.base import Accumulator, Array, LabelKind, Metric

SHAPE = "(reference, candidate) or (reference, candidate, labels)"


def load(name: str) -> Metric:
    """The metric that ``module:name`` names; modules of the working directory are found too.

    Raises:
        ConfigError: If it cannot be imported, or is neither a function nor a class of the described form.
    """
    module_name, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f"Metric '{name}' is not of the form module:function.", hint="E.g. --metric mymetrics:wer.")
    module = _imported(name, module_name)
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"Metric '{name}': module '{module_name}' has no '{attribute}'.")
    is_class = isinstance(found, type)
    if is_class and not (callable(getattr(found, "update", None)) and callable(getattr(found, "result", None))):
        raise ConfigError(f"Metric '{name}' is a class without update and result; expected both, or a function.")
    if not callable(found):
        raise ConfigError(f"Metric '{name}' is {type(found).__name__}; expected a function {SHAPE}, or a class.")
    takes, needs = _labels(name, found.update if is_class else found, bound=not is_class)
    direction = getattr(found, "higher_is_better", None)
    if direction not in (None, True, False):
        raise ConfigError(f"Metric '{name}': higher_is_better is {direction!r}; expected True or False.")
    start: Callable[[], Accumulator] = partial(_Batches if is_class else _Whole, name, found, takes)
    return Metric(
        name,
        str(getattr(found, "title", attribute)),
        str(getattr(found, "unit", "")),
        higher_is_better=None if direction is None else bool(direction),
        start=start,
        needs_labels=needs,
        kinds=frozenset(LabelKind) if takes else frozenset(),
        own=True,
    )


def _imported(name: str, module_name: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"Metric '{name}': module '{module_name}' cannot be imported: {_line(error)}.") from error
    except Exception as error:
        raise ConfigError(f"Metric '{name}': importing '{module_name}' raised {_line(error)}.") from error
    finally:
        sys.path.remove(here)


def _labels(name: str, function: Callable[..., Any], *, bound: bool) -> tuple[bool, bool]:
    """Whether a function takes labels, and whether it cannot do without."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[0 if bound else 1 :]
    except (TypeError, ValueError):  # some builtins have no signature
        return False, False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in places if p.default is p.empty]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(required) > 3 or keywords or (len(places) < 2 and not several):
        raise ConfigError(f"Metric '{name}' takes {inspect.signature(function)}; expected {SHAPE}.")
    named = len(places) > 2 and (len(required) == 3 or places[2].name == "labels")
    return named, len(required) == 3


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Turn what the user's code raises into one line."""
    try:
        yield
    except QtoolError:
        raise
    except Exception as error:
        raise ConfigError(f"Metric '{name}' raised {_line(error)}.") from error


def _number(name: str, value: object) -> float | None:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if value is None:
        return None
    if not isinstance(value, (numbers.Real, np.bool_)):
        raise ConfigError(f"Metric '{name}' returned {type(value).__name__}; expected a number, or None.")
    return float(value)


class _Whole(Accumulator):
    """Keeps all batches for a function that wants them at once."""

    def __init__(self, name: str, function: Callable[..., Any], takes_labels: bool) -> None:
        self._name, self._function, self._takes_labels = name, function, takes_labels
        self._batches: list[tuple[Array, Array, Array | None]] = []

    def update(
        self,
        reference: Array,
        candidate: Array,
        labels: Array | None = None,
        *,
        samples: int | None = None,  # noqa: ARG002
    ) -> None:
        """Keep one batch; see the base class."""
        self._batches.append((reference, candidate, labels))

    def result(self) -> float | None:
        """What the function returns for everything added."""
        if not self._batches:
            return None
        references, candidates, labels = zip(*self._batches, strict=True)
        whole = [self._joined(references), self._joined(candidates)]
        if self._takes_labels:
            whole.append(None if labels[0] is None else self._joined(labels))
        with _guarded(self._name):
            return _number(self._name, self._function(*whole))

    def _joined(self, arrays: tuple[Any, ...]) -> Any:
        if len({array.shape[1:] for array in arrays}) > 1 or (arrays[0].ndim == 0 and len(arrays) > 1):
            shapes = f"{arrays[0].shape} and {next((a.shape for a in arrays if a.shape != arrays[0].shape), ())}"
            raise ConfigError(
                f"Metric '{self._name}' is a function of whole outputs, and the shapes {shapes} cannot be joined.",
                hint="Write it as a class with update and result, which sees one batch after the other.",
            )
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class _Batches(Accumulator):
    """Hands each batch on to an object of the user's class."""

    def __init__(self, name: str, kind: Callable[[], Any], takes_labels: bool) -> None:
        self._name, self._takes_labels, self._touched = name, takes_labels, False
        with _guarded(name):
            self._inner = kind()

    def update(
        self,
        reference: Array,
        candidate: Array,
        labels: Array | None = None,
        *,
        samples: int | None = None,  # noqa: ARG002
    ) -> None:
        """Hand on one batch; see the base class."""
        self._touched = True
        with _guarded(self._name):
            self._inner.update(*(reference, candidate, labels)[: 3 if self._takes_labels else 2])

    def result(self) -> float | None:
        """What the object says; None before the first batch."""
        if not self._touched:
            return None
        with _guarded(self._name):
            return _number(self._name, self._inner.result())

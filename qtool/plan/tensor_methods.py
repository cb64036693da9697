"""Which range method a tensor gets: the one of all, or that of the last glob which matches it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from qtool.calibrate.methods import Method, parse_method
from qtool.calibrate.statistics import Statistics
from qtool.config import QuantConfig
from qtool.errors import ConfigError

AUTO = "auto"


def method_of(config: QuantConfig, group: Sequence[str]) -> tuple[Method, float | None]:
    """The method of tensors that share their parameters, and its parameter; one that matches decides for all."""
    return parse_method(method_text(config, group))


def method_text(config: QuantConfig, group: Sequence[str]) -> str:
    """The method of tensors that share their parameters, as it was asked for."""
    for pattern, method in reversed(config.tensor_methods):
        if any(_matches(pattern, name) for name in group):
            return method
    return config.method


def leaves_to_auto(config: QuantConfig) -> bool:
    """Whether the settings leave the range of any activation to ``auto``."""
    return any(text == AUTO for text in _texts(config))


def in_place_of_auto(config: QuantConfig, method: str) -> QuantConfig:
    """The settings with one method wherever they say ``auto``; what they say of other tensors holds."""
    return config.with_options(
        method=method if config.method == AUTO else config.method,
        tensor_methods=tuple((glob, method if text == AUTO else text) for glob, text in config.tensor_methods),
        overrides=tuple(replace(o, method=method) if o.method == AUTO else o for o in config.overrides),
    )


def _texts(config: QuantConfig) -> list[str]:
    of_nodes = (override.method for override in config.overrides if override.method is not None)
    return [config.method, *(method for _, method in config.tensor_methods), *of_nodes]


def need_histograms(config: QuantConfig) -> bool:
    """Whether any of the methods reads histograms."""
    return any(parse_method(text)[0].needs_histogram for text in _texts(config))


def refuse_unmatched(config: QuantConfig, names: Iterable[str]) -> None:
    """Refuse globs that match no tensor of the user's model.

    Args:
        config: Holds the globs.
        names: All tensors of the user's model.

    Raises:
        ConfigError: Naming the nearest tensors.
    """
    if not config.tensor_methods:
        return
    known = [name for name in names if name]
    for pattern, method in config.tensor_methods:
        if not any(_matches(pattern, name) for name in known):
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4)
            raise ConfigError(
                f"--method '{pattern}={method}' matches no tensor of the model.",
                hint=f"Nearest: {', '.join(repr(name) for name in near)}."
                if near
                else "Tensors are named by the model's inputs and by the outputs of its nodes, not by the nodes.",
            )


def without_effect(config: QuantConfig, quantized: Iterable[str]) -> list[str]:
    """A line for each glob that matches no quantized tensor."""
    names = list(quantized)
    return [
        f"--method '{pattern}={method}' changes nothing: no tensor that it matches is quantized"
        for pattern, method in config.tensor_methods
        if not any(_matches(pattern, name) for name in names)
    ]


def too_few_values(
    settings_of: Callable[[str], QuantConfig], groups: Iterable[Sequence[str]], seen: Statistics
) -> list[str]:
    """A line if percentiles are asked for that cut less than one value of some tensors."""
    short: dict[str, tuple[int, float]] = {}
    for group in groups:
        config = settings_of(group[0])
        method, parameter = method_of(config, group)
        if method.name != "percentile" or parameter is None:
            continue
        low, high = min(seen[n].minimum for n in group), max(seen[n].maximum for n in group)
        both = low < 0.0 < high and not config.symmetric_activations
        count = sum(seen[name].finite for name in group)
        if low < high and 0 < parameter < 100 and (count - 1) * (1.0 - parameter / 100.0) < (2 if both else 1):
            short[group[0]] = (count, parameter)
    if not short:
        return []
    name, (count, parameter) = min(short.items(), key=lambda item: item[1][0])
    others = f" (and of {len(short) - 1} more tensors)" if len(short) > 1 else ""
    text = (
        f"percentile:{parameter:g} cuts less than one of the {count} values of '{name}'{others}: its range is all but "
        f"that of minmax. Calibrate on more samples, or use a lower percentile"
    )
    return [text]


def _matches(pattern: str, name: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)

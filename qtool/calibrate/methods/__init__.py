"""Range methods: from a tensor's statistics to the range that its codes shall cover.

Each method is a file here and a row of ``METHODS``. A method is pure, and works on saved statistics as well as on
fresh ones. To add one, write ``<name>.py`` with a ``METHOD`` and list it below.
"""

from __future__ import annotations

from qtool.calibrate.methods import auto, entropy, mean_minmax, minmax, mse, percentile
from qtool.calibrate.methods._method import Method
from qtool.errors import ConfigError

__all__ = ["METHODS", "Method", "parse_method"]

METHODS: dict[str, Method] = {m.METHOD.name: m.METHOD for m in (auto, minmax, percentile, mse, entropy, mean_minmax)}


def parse_method(text: str) -> tuple[Method, float | None]:
    """Read ``name`` or ``name:parameter``, such as ``percentile:99.9``.

    Returns:
        The method, and its parameter (the method's default if none is given; ``None`` if it takes none).

    Raises:
        ConfigError: For an unknown method, a parameter that the method does not take, or one outside its limits.
    """
    name, colon, given = text.partition(":")
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"Unknown range method '{text}'; expected one of {', '.join(map(_form, METHODS.values()))}.")
    if not colon:
        return method, method.default
    if method.default is None:
        raise ConfigError(f"Range method '{name}' takes no parameter, got '{given}'.")
    low, high = method.limits
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not low < value <= high:
        raise ConfigError(f"Range method '{text}': parameter is '{given}'; expected a number above {low} up to {high}.")
    return method, value


def _form(method: Method) -> str:
    return method.name if method.default is None else f"{method.name}[:P]"

"""Which outputs a run is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from qtool.errors import ModelError


def wanted_outputs(
    subject: str, asked: Sequence[str] | None, known: Collection[str], opaque: Mapping[str, str]
) -> list[str]:
    """Names of the outputs to compute.

    Args:
        subject: The model, for messages.
        asked: Names; None asks for all arrays.
        known: Outputs that are arrays, in graph order.
        opaque: The others, with what they are.

    Raises:
        ModelError: If an output is no array, or the model does not have it.
    """
    names = list(known) if asked is None else list(asked)
    for name in names:
        if name in opaque:
            raise ModelError(f"{subject}: output '{name}' is {opaque[name]}, which is no array.")
        if name not in known:
            raise ModelError(f"{subject} has no output '{name}'; its outputs are {', '.join(known)}.")
    return names

"""The int32 sum of an integer product, and when it may wrap around (numerics.md 4)."""

from __future__ import annotations

# largest K for which |sum of K products| stays below 2^31
_MAX_K = {("uint8", "int8"): 66_311, ("int8", "int8"): 131_071, ("uint8", "uint8"): 33_025}


def wrap_note(node: str, depth: int, activations: str, weights: str) -> str | None:
    """A line about a sum of ``depth`` products that int32 may not hold, or None."""
    limit = _MAX_K.get((activations, weights))
    if limit is None or depth <= limit:
        return None
    return (
        f"{node}: sums {depth} products, which may wrap around in int32 (safe up to {limit} for "
        f"{activations} x {weights})"
    )

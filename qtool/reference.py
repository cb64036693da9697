"""The oracle: every kernel once more, short, slow and obvious, in NumPy.

Each function is one of the numbered equations of docs/quantization.md. Nothing here is fast, nothing here is clever.
"""

from __future__ import annotations

# -------------------------------------------------------------------------------------------------- element by element

# ------------------------------------------------------------------------------------------------------ integer matmul

"""The face of the compiled core: validation, allocation, threads, views of ml_dtypes arrays, packing.

Only this module imports ``qtool._core``.
"""

from __future__ import annotations

# -------------------------------------------------------------------------------------------------- element by element

# ------------------------------------------------------------------------------------------------------ integer matmul

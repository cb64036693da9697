"""The measured peaks of the dot-product units. Speeds are not asserted."""

from __future__ import annotations

from typing import get_args

import pytest

from qtool import kernels
from qtool.errors import KernelError
from qtool.kernels.ceilings import Peak

NEEDS = {"vnni": "avx512vnni", "avxvnni": "avxvnni", "amx": "amx_int8"}


@pytest.mark.parametrize("name", get_args(Peak))
def test_a_peak_is_there_where_its_instruction_set_is(name: Peak) -> None:
    found = kernels.peak(name, 1e-3)
    if NEEDS[name] in kernels.isa_info().supported:
        assert found is not None
        assert found > 1e9
    else:
        assert found is None


@pytest.mark.parametrize(("name", "seconds"), [("sse", 0.1), ("vnni", 0.0), ("vnni", float("nan"))])
def test_what_cannot_be_measured_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(KernelError, match=f"Peak '{name}' over"):
        kernels.peak(name, seconds)  # type: ignore[arg-type]

"""Every instruction set that this processor has, for the tests of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qtool import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

ISAS = ("scalar", "avx2", "avxvnni", "avx512vnni", "amx_int8")


@pytest.fixture(params=ISAS, scope="module")
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with dispatch capped at each instruction set in turn; those the processor lacks are skipped.

    A module whose kernels differ by instruction set says ``pytestmark = pytest.mark.usefixtures("isa")``. The scope is
    the module because hypothesis refuses fixtures that it would have to set up for each example.
    """
    before = kernels.isa_info()
    if request.param not in before.supported:
        pytest.skip(f"this processor has no {request.param}")
    kernels.cap_isa(request.param)
    yield request.param
    kernels.cap_isa(before.cap)

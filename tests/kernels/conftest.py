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
    """Run the test with dispatch capped at each instruction set in turn.

    Those that the processor lacks, that the operating system refuses or that lie above the cap QTOOL_ISA of the run are
    skipped; tests/conftest.py says so after the run. A module whose kernels differ by instruction set says
    ``pytestmark = pytest.mark.usefixtures("isa")``. The scope is the module because hypothesis refuses fixtures that it
    would have to set up for each example.
    """
    before = kernels.isa_info()
    if request.param not in before.supported:
        pytest.skip(f"ISA {request.param}: this processor lacks it")
    if before.cap != "auto" and ISAS.index(request.param) > ISAS.index(before.cap):
        pytest.skip(f"ISA {request.param}: above the cap QTOOL_ISA={before.cap}")
    kernels.cap_isa(request.param)
    try:
        if request.param == "amx_int8" and kernels.isa_info().amx == "refused":
            pytest.skip(f"ISA {request.param}: the operating system refuses it")
        yield request.param
    finally:
        kernels.cap_isa(before.cap)

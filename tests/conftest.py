"""Fixtures that every part of the test suite shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest

from tests.real import RealModels, shared_folder

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_ZOO = ROOT.parent / "shared" / "zoo"


def zoo_folder() -> Path:
    """The folder of real models: QTOOL_ZOO, or ../shared/zoo beside the repository."""
    return Path(os.environ.get("QTOOL_ZOO") or DEFAULT_ZOO)


def pytest_configure() -> None:
    """Listen to Ctrl-C where the shell started the run in the background, with the signal ignored.

    Children inherit that, and the tests that interrupt one would wait for a minute each and fail. Sessions of the
    tests' own processes get the options below.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    onnxruntime.SessionOptions = PatientOptions


class PatientOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Threads that wait sleep: spinning, they would take the core of another process of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip zoo tests where there is no zoo; QTOOL_REQUIRE_ZOO=1 makes its absence an error instead (CI sets it)."""
    if (zoo_folder() / "mnist_cnn.onnx").is_file():
        return
    reason = f"no model zoo at {zoo_folder()} (set QTOOL_ZOO)"
    wanted = [item for item in items if item.get_closest_marker("zoo")]
    if wanted and os.environ.get("QTOOL_REQUIRE_ZOO", "") not in ("", "0"):
        raise pytest.UsageError(f"QTOOL_REQUIRE_ZOO is set, and there is {reason}: {len(wanted)} tests need it")
    for item in wanted:
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the instruction sets whose kernels this run left out: a green run says nothing about those."""
    reasons = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if report.longrepr}
    for reason in sorted(reasons):
        if "Skipped: ISA " in reason:
            terminalreporter.write_line(f"kernels not tested: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder of real models; use it in tests that are marked ``zoo``."""
    return zoo_folder()


@pytest.fixture(scope="session")
def real(zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> RealModels:
    """Those models calibrated and quantized with the defaults, once."""
    return RealModels(zoo, shared_folder(tmp_path_factory), tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="session")
def examples() -> Path:
    """The models and samples that come with qtool."""
    return ROOT / "examples"


@pytest.fixture
def hangups() -> Iterator[None]:
    """Let SIGHUP end things although the run may be one of ``nohup``, whose children ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)

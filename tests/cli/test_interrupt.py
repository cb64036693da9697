"""Ctrl-C waits for the end of an import."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from contextlib import suppress

import pytest

from qtool.cli._interrupt import is_importing, patient_interrupts, was_interrupted


def test_an_interrupt_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0.1)\ndone = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def work():
        with patient_interrupts():
            importlib.import_module("slow_to_import")
            time.sleep(10)  # a system call, which the interrupt cuts short

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - begun < 9
    assert sys.modules.pop("slow_to_import").done


def test_an_interrupt_elsewhere_comes_at_once():
    def work():
        with patient_interrupts():
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the interrupt came late")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_interrupt_that_became_another_error_is_remembered():
    with patient_interrupts():
        assert not was_interrupted()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the interrupt came late")
    assert was_interrupted()
    with patient_interrupts():
        assert not was_interrupted()


def test_the_handler_is_put_back():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with patient_interrupts():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with patient_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_requests_to_end_are_interrupts(signum):
    def work():
        with patient_interrupts():
            signal.raise_signal(signum)
            pytest.fail("the interrupt came late")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signum) is signal.SIG_DFL


def test_a_plain_frame_is_no_import():
    assert not is_importing(sys._getframe())
    assert not is_importing(None)

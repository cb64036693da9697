"""Ctrl-C that does not hit an import.

An exception in the middle of an import is not always a clean end: extension modules turn it into an ImportError or
crash, and one that passes through exec() (dataclasses) makes CPython die by the signal although it was handled. So an
interrupt that arrives during an import waits until it is over.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RETRY_SECONDS = 0.02


@contextmanager
def patient_interrupts() -> Iterator[None]:
    """For the duration of a block, SIGINT raises KeyboardInterrupt as usual, but never inside an import.

    Leaves SIGINT alone where somebody else handles or ignores it, and outside the main thread.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if not is_importing(frame):
        raise KeyboardInterrupt
    timer = threading.Timer(RETRY_SECONDS, signal.raise_signal, [signum])
    timer.daemon = True
    timer.start()


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, belongs to the import system."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False

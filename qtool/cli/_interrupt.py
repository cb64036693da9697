"""Ctrl-C, and the requests of a system to end, as KeyboardInterrupt that does not hit an import.

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
# What else asks a process to end, and would otherwise leave no time to remove temporary files.
_ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_arrived = threading.Event()
_DEFAULTS = (signal.default_int_handler, signal.SIG_DFL)


@contextmanager
def patient_interrupts() -> Iterator[None]:
    """For the duration of a block, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, but never inside an import.

    Leaves a signal alone where somebody else handles or ignores it, and all of them outside the main thread.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    before = {s: handler for s in _ENDINGS if main_thread and (handler := signal.getsignal(s)) in _DEFAULTS}
    _arrived.clear()
    for signum in before:
        signal.signal(signum, _interrupt)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def was_interrupted() -> bool:
    """Whether a KeyboardInterrupt was raised since the block began, whatever became of it.

    Extension modules may turn one that passes through their conversions into a TypeError or another error of theirs.
    """
    return _arrived.is_set()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if not is_importing(frame):
        _arrived.set()
        raise KeyboardInterrupt
    timer = threading.Timer(RETRY_SECONDS, _send_again, [signum])
    timer.daemon = True
    timer.start()


def _send_again(signum: int) -> None:
    """To the main thread itself: a signal of another thread would not wake it from a system call."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signum)
    else:
        signal.raise_signal(signum)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, belongs to the import system."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False

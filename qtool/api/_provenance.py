"""Of which model and which samples statistics are: hashed and unpacked beside the preparation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from qtool.calibrate.coverage import Coverage
    from qtool.calibrate.kept import Kept
    from qtool.calibrate.samples import Samples
    from qtool.prepare.fingerprint import Fingerprint


class Provenance:
    """What a statistics file says beside the statistics; for the duration of a block.

    Args:
        loaded: The user's model.
        prepared: The model that is observed. It may lend its constants from now on.
        samples: What it is observed on.
        beside: Whether a thread may begin at once. Hashing and unpacking hold no lock of Python's, and what comes
            before collection, from the energies of weights to the sessions, leaves a second core idle.
        early: Whether it may unpack the samples to keep, too, which then lie in memory while others are run.
    """

    def __init__(
        self, loaded: ir.Model, prepared: ir.Model, samples: Samples, *, beside: bool, early: bool = True
    ) -> None:
        from qtool.calibrate.kept import survey
        from qtool.prepare.fingerprint import fingerprinting
        from qtool.prepare.load import external_files

        self._pool = ThreadPoolExecutor(1) if beside else None
        self._identify: Callable[[], Fingerprint] = fingerprinting(prepared, loaded.graph.opset_imports)
        self._survey: Callable[[], tuple[Coverage, Kept]] = partial(survey, samples)
        # two threads must not read one tensor of an external file, nor walk an iterable of the caller's
        if self._pool is None or external_files(loaded):
            _ = self.model
        else:
            self._identify = self._pool.submit(self._identify).result
        if early and self._pool is not None and all(source.path is not None for source in samples.sources):
            self._survey = self._pool.submit(self._survey).result

    def __enter__(self) -> Provenance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @cached_property
    def model(self) -> Fingerprint:
        """Fingerprint of the prepared model.

        Raises:
            ModelError: If its file was changed meanwhile.
        """
        return self._identify()

    @cached_property
    def samples(self) -> tuple[Coverage, Kept]:
        """What the samples cover, and the ones to keep of them.

        Raises:
            DataError: If they cannot be read.
        """
        return self._survey()

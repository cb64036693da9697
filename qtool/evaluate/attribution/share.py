"""What share of the noise at a model's outputs each operator is to blame for.

The float model F is run on one sample with the own error d_l of operator l added to its output, and nothing else:

    E_l = sum over outputs o of sum (F_o(x; y_l + d_l) - F_o(x))^2 / sum F_o(x)^2        share_l = E_l / sum_k E_k

This is the noise that l alone causes, with the gain and the nonlinearity of all that follows. It is measured for the
operators with the most noise beside their signal; for the others E_l is that ratio times the median of E_k / ratio_k
over the measured ones. Errors of different operators are taken as uncorrelated, as in B. Widrow, I. Kollar,
Quantization Noise, Cambridge University Press 2008, so that their energies add.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import count

import numpy as np

from qtool.calibrate.collect import available_cores
from qtool.evaluate.attribution.energy import difference_energy, energy
from qtool.evaluate.attribution.graph import Array, Graph
from qtool.runtime import Session, create_session

MOST_MEASURED = 24
MOST_BYTES = 64 << 20


class Errors:
    """The own errors of the units with the most noise, on one sample; a bounded number of bytes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Array]] = []
        self._order = count()
        self._nbytes = 0

    def add(self, unit: int, ratio: float, error: Array) -> None:
        """Keep an error if it is among the worst.

        Args:
            unit: Number of the unit.
            ratio: Its noise beside its signal.
            error: What it adds to its output.
        """
        if ratio == 0.0 or error.nbytes > MOST_BYTES:
            return
        heapq.heappush(self._heap, (ratio, next(self._order), unit, error))
        self._nbytes += error.nbytes
        while len(self._heap) > MOST_MEASURED or self._nbytes > MOST_BYTES:
            self._nbytes -= heapq.heappop(self._heap)[3].nbytes

    @property
    def kept(self) -> list[tuple[int, Array]]:
        """(unit, error), the worst first."""
        return [(unit, error) for _, _, unit, error in sorted(self._heap, key=lambda one: (-one[0], one[1]))]


class Switchboard:
    """The float model with an input that is added to each of some tensors.

    Args:
        reference: The float model.
        names: Outputs of operators; some may be there more than once.
    """

    def __init__(self, reference: Graph, names: Sequence[str]) -> None:
        self._reference = reference
        self._names = list(dict.fromkeys(names))

    @cached_property
    def _session(self) -> Session:
        return _switchboard(self._reference, self._names)

    def output_noise(
        self, injected: Sequence[tuple[str, Array]], feeds: Mapping[str, Array], num_threads: int | None
    ) -> list[float]:
        """E_l for several operators.

        Args:
            injected: (output of the operator, error).
            feeds: One sample.
            num_threads: Runs at a time, with a thread each: they need not wait for each other, as threads of one run
                do.
        """
        if not injected:
            return []
        session = self._session
        off: dict[str, Array] = {_slot(name): np.zeros((), np.float32) for name in self._names}
        plain = _floats(session.run({**feeds, **off}))

        def noise(one: tuple[str, Array]) -> float:
            name, error = one
            noisy = _floats(session.run({**feeds, **off, _slot(name): error.astype(np.float32, copy=False)}))
            return sum(_relative(plain[output], noisy[output]) for output in plain)

        with ThreadPoolExecutor(num_threads or available_cores()) as pool:
            return list(pool.map(noise, injected))


def noises(ratios: Sequence[float], measured: Mapping[int, float]) -> list[float]:
    """E of all units, those that were not measured estimated.

    Args:
        ratios: Own noise beside the signal of each unit.
        measured: Unit -> E.
    """
    gains = [measured[u] / ratios[u] for u in measured if 0.0 < ratios[u] < math.inf and math.isfinite(measured[u])]
    gain = statistics.median(gains) if gains else 1.0
    return [measured.get(unit, gain * ratio) for unit, ratio in enumerate(ratios)]


def shares(noises: Sequence[float]) -> list[float | None]:
    """Shares of all units, whose E these are."""
    broken = [not math.isfinite(noise) for noise in noises]
    if any(broken):  # what makes NaN or infinities is to blame for everything
        return [1.0 / sum(broken) if bad else 0.0 for bad in broken]
    total = sum(noises)
    return [noise / total if total else 0.0 for noise in noises]


def _relative(y: Array, noisy: Array) -> float:
    if y.shape != noisy.shape:
        return math.inf
    noise, signal = difference_energy(noisy, y), energy(y)
    return math.inf if math.isnan(noise) else noise / signal if signal else (math.inf if noise else 0.0)


def _floats(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _slot(name: str) -> str:
    return f"{name}:error"


def _switchboard(reference: Graph, names: Sequence[str]) -> Session:
    import onnx

    source = reference.source.proto
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import, functions=source.functions)
    graph = model.graph
    graph.name = "switchboard"
    graph.input.extend(source.graph.input)
    graph.output.extend(source.graph.output)
    graph.initializer.extend(source.graph.initializer)
    graph.sparse_initializer.extend(source.graph.sparse_initializer)
    renamed = {name: f"{name}:exact" for name in names}
    for node in source.graph.node:
        made = [name for name in node.output if name in renamed]
        copy = graph.node.add()
        copy.CopyFrom(node)
        for index, name in enumerate(copy.output):
            copy.output[index] = renamed.get(name, name)
        for name in made:
            graph.node.add(op_type="Add", input=[renamed[name], _slot(name)], output=[name])
    for name in names:
        graph.input.append(onnx.helper.make_tensor_value_info(_slot(name), onnx.TensorProto.FLOAT, None))
    return create_session(model.SerializeToString(), num_threads=1, base_dir=reference.source.base_dir)

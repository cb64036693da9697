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
from typing import TYPE_CHECKING

import numpy as np

from qtool.calibrate.collect import available_cores
from qtool.calibrate.segments import SegmentedModel, SourceGraph
from qtool.evaluate.attribution.energy import difference_energy, energy
from qtool.evaluate.attribution.graph import Array, Graph

if TYPE_CHECKING:
    import onnx

MOST_MEASURED = 24
MOST_BYTES = 64 << 20
PIECES = 6
"""Of the float model: more of them save little more, and each is a session."""
FLOATS = ("float32", "float16", "float64")


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

    It is cut into a few pieces, for what comes before an error is the same with and without it.

    Args:
        reference: The float model.
        names: Outputs of operators; some may be there more than once.
    """

    def __init__(self, reference: Graph, names: Sequence[str]) -> None:
        self._reference = reference
        self._names = list(dict.fromkeys(names))

    @cached_property
    def _model(self) -> SegmentedModel:
        proto = _switchboard(self._reference, self._names)
        made = [name for node in self._reference.nodes for name in node.output if name in self._names]
        cuts = [_before(name) for name in made[:: -(-len(made) // PIECES)]]
        outputs = [value.name for value in proto.graph.output]
        produced = {name for node in proto.graph.node for name in node.output}
        wanted = [*cuts, *(name for name in outputs if name in produced)]
        source = SourceGraph(proto, self._reference.source.base_dir)
        return SegmentedModel(source, wanted, per_segment=1, strict=False, observed=FLOATS)

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
        model = self._model
        off: dict[str, Array] = {_slot(name): np.zeros((), np.float32) for name in self._names}
        starts, plain = self._run_through({**feeds, **off})

        def noise(one: tuple[str, Array]) -> float:
            name, error = one
            first, values = _latest(starts, model.first_reader(_slot(name)))
            values = {**values, _slot(name): error.astype(np.float32, copy=False)}
            *_, (_, noisy) = model.resume(values, first, plain)
            return sum(_relative(array, noisy[output]) for output, array in plain.items())

        with ThreadPoolExecutor(num_threads or available_cores()) as pool:
            return list(pool.map(noise, injected))

    def _run_through(self, feeds: Mapping[str, Array]) -> tuple[dict[int, dict[str, Array]], dict[str, Array]]:
        """Run without errors; what there is before each piece, as far as it is not too much, and the outputs."""
        outputs = {value.name for value in self._reference.source.proto.graph.output} & set(self._model.computed)
        starts: dict[int, dict[str, Array]] = {}
        held: dict[int, int] = {}
        for number, values in self._model.resume(feeds, 0, outputs):
            read = self._model.read_from(number)
            start = {name: array for name, array in values.items() if name in read or name in outputs}
            held |= {id(array): array.nbytes for name, array in start.items() if name not in feeds}
            if not starts or sum(held.values()) <= MOST_BYTES:
                starts[number] = start
        return starts, {name: array for name, array in values.items() if name in outputs}


def _latest(starts: Mapping[int, dict[str, Array]], piece: int) -> tuple[int, dict[str, Array]]:
    """The last start before a piece, or at it."""
    first = max(number for number in starts if number <= piece)
    return first, starts[first]


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


def _slot(name: str) -> str:
    return f"{name}:error"


def _before(name: str) -> str:
    return f"{name}:exact"


def _switchboard(reference: Graph, names: Sequence[str]) -> onnx.ModelProto:
    import onnx

    source = reference.source.proto
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import, functions=source.functions)
    graph = model.graph
    graph.name = "switchboard"
    graph.input.extend(source.graph.input)
    graph.output.extend(source.graph.output)
    graph.initializer.extend(source.graph.initializer)
    graph.sparse_initializer.extend(source.graph.sparse_initializer)
    renamed = {name: _before(name) for name in names}
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
    return model

"""What each quantized operator alone would gain in float.

The quantized model is run once more for each operator, with the operator's result replaced by what the float operator
makes of the same inputs; everything else stays as it is. Inputs that the model quantizes for the operator are read
before they are rounded; those that another quantized operator writes as codes are read from the codes. Where the result
is wanted as codes, the exact result is rounded to them.

That costs a run of the whole model per operator: the number of samples is bounded, and the first ones are taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qtool import kernels
from qtool.calibrate.segments import SegmentedModel
from qtool.errors import ConfigError
from qtool.evaluate.attribution.attribute import Model, Pair, load_pair
from qtool.evaluate.attribution.command import literal
from qtool.evaluate.attribution.energy import difference_energy, energy
from qtool.evaluate.attribution.graph import Array, is_op
from qtool.evaluate.attribution.next_steps import Starting, commands_of
from qtool.evaluate.attribution.operator import FloatPart, Operator, float_part
from qtool.evaluate.attribution.report import Command, Sensitivity, UnitSensitivity
from qtool.evaluate.attribution.tally import read
from qtool.evaluate.attribution.units import MOVERS, Codes, Operand
from qtool.evaluate.attribution.walk import OBSERVED, Side
from qtool.runtime import Session, create_session
from qtool.runtime.arena import release_arena
from qtool.signal import db

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples

MOST_SAMPLES = 32
BATCH_BYTES = 1 << 20
"""Of the inputs and outputs of samples that are run at once; activations are many times as much."""
_WORTH_DB = 0.1
_TOGETHER = 3


def measure_sensitivity(
    float_model: Model,
    quant_model: Model,
    samples: Samples,
    *,
    layer_samples: int | None = None,
    num_threads: int | None = None,
    calibration: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sensitivity:
    """Measure the gain of each quantized operator in float.

    Args:
        float_model: The reference; a path if it has external data.
        quant_model: The quantized model, of qtool or another tool.
        samples: Inputs of the float model.
        layer_samples: Samples to run, the first in order; by default 32.
        num_threads: Threads of each session.
        calibration: See ``attribute``.
        progress: Called with (operators done, operators in all), each sample anew.

    Raises:
        ConfigError: If no quantized operator can be matched, or ``layer_samples`` is not positive.
        ModelError: If a model cannot be read or run.
        DataError: If the samples do not fit.
    """
    if layer_samples is not None and layer_samples < 1:
        raise ConfigError(f"Number of samples for layers is {layer_samples}; expected 1 or more.")
    pair = load_pair(float_model, quant_model, samples, layer_samples)
    chosen = pair.samples
    reads = [_Reads.of(number, pair) for number in range(len(pair.units))]
    wanted = dict.fromkeys(name for one in reads for name in sorted(one.names))
    candidate = SegmentedModel(pair.quantized.source, list(wanted), strict=False, observed=OBSERVED)
    there = {*candidate.fed, *candidate.computed}
    numbers = [number for number, one in enumerate(reads) if one.names <= there]
    board = _Switchboard(pair, numbers, num_threads)
    reference = create_session(_source(float_model), num_threads=num_threads)
    operators = {n: Operator(pair.units[n], reads[n].part, pair.quantized, pair.reference) for n in numbers}
    before, after = _Noise(), {number: _Noise() for number in numbers}
    misfits: set[int] = set()
    done = 0
    size = chosen.fixed_batch or 1
    most = min(chosen.count, max(size, (layer_samples or MOST_SAMPLES) // size * size))
    for rows, feeds in _batches(chosen, most, size, None if pair.single else reference):
        exact = reference.run(feeds)
        before.add(exact, board.run(feeds))
        side = Side(candidate, feeds)
        for number in numbers:
            side.expect(reads[number].names)
        for position, number in enumerate(numbers):
            arrays = side.take(reads[number].names)
            result = operators[number].exact(reads[number].operands(arrays), feeds)
            if result.shape != arrays[pair.units[number].source].shape:
                misfits.add(number)
                continue
            after[number].add(exact, board.run(feeds, number, result))
            if progress is not None:
                progress(position + 1, len(numbers))
        done += rows
    release_arena()
    lost = [*pair.left_out, *((pair.name(n), "its arrays were not seen") for n in {*range(len(reads))} - {*numbers})]
    lost += [(pair.name(n), "its result has another shape in the float model") for n in sorted(misfits)]
    base = before.decibels
    units = [
        UnitSensitivity(pair.name(n), pair.units[n].op_type, one.decibels, _gain(one.decibels, base))
        for n, one in after.items()
        if n not in misfits
    ]
    units.sort(key=lambda unit: -unit.gain_db if unit.gain_db == unit.gain_db else np.inf)
    starting = Starting.of(pair.quantized.source.proto, float_model, quant_model, samples, calibration)
    commands, notes = _commands(units, starting)
    return Sensitivity(tuple(units), done, base, tuple(commands), tuple(lost), tuple(notes))


def _gain(value: float, base: float) -> float:
    return 0.0 if value == base else value - base


def _commands(units: Sequence[UnitSensitivity], starting: Starting) -> tuple[list[Command], list[str]]:
    """Leave the first out, and the first few."""
    gaining = [unit for unit in units if unit.gain_db > _WORTH_DB]
    choices = []
    if gaining:
        first = gaining[0]
        choices.append(([("--exclude", literal(first.node))], f"{first.node} stays float: {first.gain_db:+.1f} dB"))
    if len(gaining) > 1:
        few = gaining[:_TOGETHER]
        choices.append(([("--exclude", literal(unit.node)) for unit in few], f"the {len(few)} that gain most"))
    return commands_of(starting, choices)


@dataclass(frozen=True)
class _Reads:
    """What is needed of the quantized model to compute a unit exactly.

    Attributes:
        sources: Tensor of the float model -> (value of the quantized model, how it is read).
        result: The value that is replaced.
        part: The nodes of the float model that compute the result from these tensors.
    """

    sources: Mapping[str, tuple[str, Codes | None]]
    result: str
    part: FloatPart

    @classmethod
    def of(cls, number: int, pair: Pair) -> _Reads:
        """Of a unit; values before they are rounded for it, where there are such."""
        unit = pair.units[number]
        rounded = {o.tensor: (o.source, o.params) for o in unit.operands}
        exact: dict[str, tuple[str, Codes | None]] = {}
        for operand in unit.operands:
            before = None if operand.params is None else _before_rounding(operand.source, pair)
            if before is None:
                exact[operand.tensor] = operand.source, operand.params
            else:
                exact[before] = before, None
        operands = tuple(Operand(tensor, source, source, params) for tensor, (source, params) in exact.items())
        part = float_part(replace(unit, operands=operands), pair.reference)
        if part is None:  # too much lies between them
            return cls(rounded, unit.source, pair.parts[number])
        return cls(exact, unit.source, part)

    @property
    def names(self) -> set[str]:
        """Values of the quantized model."""
        return {self.result, *(name for name, _ in self.sources.values())}

    def operands(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Tensor of the float model -> what the quantized model has for it."""
        return {tensor: read(arrays[name], params) for tensor, (name, params) in self.sources.items()}


def _before_rounding(codes: str, pair: Pair) -> str | None:
    """The float value that codes were made of, perhaps moved since; None where an integer operator wrote them."""
    written = {unit.source for unit in pair.units}
    while codes not in written:
        maker = pair.quantized.producer(codes)
        if maker is None:
            return None
        if is_op(maker, "QuantizeLinear"):
            return maker.input[0] if maker.input[0] in pair.reference.tensors else None
        if not is_op(maker, *MOVERS):
            return None
        codes = maker.input[0]
    return None


def _batches(
    samples: Samples, most: int, size: int, reference: Session | None
) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """The first samples, several at a time where they are small; without a reference, one by one."""
    if samples.batchable and reference is not None:
        feeds = next(iter(samples.batches(1)))
        nbytes = sum(array.nbytes for array in (*feeds.values(), *reference.run(feeds).values()))
        size = max(1, min(most, BATCH_BYTES // max(1, nbytes)))
    return samples.slice(0, most).counted_batches(size)


class _Switchboard:
    """The quantized model with a switch behind each unit that puts another result in its place."""

    def __init__(self, pair: Pair, numbers: Sequence[int], num_threads: int | None) -> None:
        import onnx
        from onnx import helper

        source = pair.quantized.source
        model = onnx.ModelProto(
            ir_version=source.proto.ir_version,
            opset_import=source.proto.opset_import,
            functions=source.proto.functions,
        )
        graph = model.graph
        graph.name = "switchboard"
        graph.input.extend(source.proto.graph.input)
        graph.output.extend(source.proto.graph.output)
        graph.initializer.extend(source.proto.graph.initializer)
        graph.sparse_initializer.extend(source.proto.graph.sparse_initializer)
        switched = {pair.units[number].source: number for number in numbers}
        self._units = {number: pair.units[number] for number in numbers}
        self._off: dict[str, Array] = {}
        self._dtypes: dict[int, np.dtype[np.generic]] = {}
        for node in source.proto.graph.node:
            copy = graph.node.add()
            copy.CopyFrom(node)
            for index, name in enumerate(node.output):
                if name not in switched:
                    continue
                number, params = switched[name], self._units[switched[name]].params
                copy.output[index] = f"{name}:made"
                dtype = np.dtype(np.float32) if params is None else params.zero.dtype
                self._dtypes[number] = dtype
                graph.node.extend(_switch(name, dtype, number))
                kind = helper.np_dtype_to_tensor_dtype(dtype)
                graph.input.append(helper.make_tensor_value_info(f"switch:{number}", onnx.TensorProto.BOOL, ()))
                graph.input.append(helper.make_tensor_value_info(f"result:{number}", kind, None))
                self._off[f"switch:{number}"] = np.asarray(False)
                self._off[f"result:{number}"] = np.zeros((), dtype)
        self._session: Session = create_session(
            model.SerializeToString(), num_threads=num_threads, base_dir=source.base_dir
        )

    def run(
        self, feeds: Mapping[str, Array], number: int | None = None, result: Array | None = None
    ) -> dict[str, Array]:
        """All outputs; with the result of a unit in its place if one is given."""
        values = {**feeds, **self._off}
        if number is not None and result is not None:
            params = self._units[number].params
            if params is not None:
                result = kernels.quantize(result, params.scale, params.zero)
            values[f"switch:{number}"] = np.asarray(True)
            values[f"result:{number}"] = np.ascontiguousarray(result, self._dtypes[number])
        return self._session.run(values)


def _switch(name: str, dtype: np.dtype[np.generic], number: int) -> list[onnx.NodeProto]:
    """``name`` is what the unit made, or what is fed instead; onnxruntime's Where lacks some types."""
    from onnx import TensorProto, helper

    made, fed = f"{name}:made", f"result:{number}"
    if dtype.name in ("float32", "uint8"):
        return [helper.make_node("Where", [f"switch:{number}", fed, made], [name])]
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    return [
        helper.make_node("Cast", [made], [f"{made}:wide"], to=TensorProto.INT32),
        helper.make_node("Cast", [fed], [f"{fed}:wide"], to=TensorProto.INT32),
        helper.make_node("Where", [f"switch:{number}", f"{fed}:wide", f"{made}:wide"], [f"{name}:wide"]),
        helper.make_node("Cast", [f"{name}:wide"], [name], to=kind),
    ]


class _Noise:
    """Noise and signal of every output, over batches."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, exact: Mapping[str, Array], found: Mapping[str, Array]) -> None:
        for name, y in exact.items():
            if y.dtype.kind != "f":
                continue
            other = found[name]
            noise = difference_energy(y, other) if y.shape == other.shape else np.nan
            before = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = before[0] + energy(y), before[1] + noise

    @property
    def decibels(self) -> float:
        """Of the mean noise of the outputs, each beside its own signal."""
        ratios = [noise / signal if signal else noise for signal, noise in self._sums.values()]
        return db(1.0, float(np.mean(ratios))) if ratios else float("nan")


def _source(model: Model) -> Path | onnx.ModelProto:
    return Path(model) if isinstance(model, (str, os.PathLike)) else model

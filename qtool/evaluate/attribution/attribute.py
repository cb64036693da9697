"""Which quantized operator the noise comes from: both models run side by side, and every operator alone on float input.

The work is bounded: some hundred megabytes of observed arrays, taken from the first samples, say of each operator what
all samples would. Nothing grows with the number of samples or layers: arrays and the sessions of single operators live
as long as one operator is looked at in one batch, and weights stay in the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

from qtool.calibrate.collect import available_cores
from qtool.calibrate.segments import SegmentedModel
from qtool.errors import ConfigError
from qtool.evaluate.attribution.advice import WORTH_DB, WORTH_SHARE, Advice, advise
from qtool.evaluate.attribution.branches import inline_branches
from qtool.evaluate.attribution.command import Origin, literal
from qtool.evaluate.attribution.energy import energy
from qtool.evaluate.attribution.graph import Array, Graph
from qtool.evaluate.attribution.lazy import lazy_graph
from qtool.evaluate.attribution.next_steps import Option, Starting, commands_of
from qtool.evaluate.attribution.operator import FloatPart, Operator, float_part
from qtool.evaluate.attribution.order import sink_dequantizers
from qtool.evaluate.attribution.report import Attribution, Cause, LayerReport, ranked
from qtool.evaluate.attribution.saturation import change, of_rows, products_in_float, saturable_channels
from qtool.evaluate.attribution.share import MOST_MEASURED, Errors, Switchboard
from qtool.evaluate.attribution.tally import InputTally, UnitTally
from qtool.evaluate.attribution.units import Unit, Units, find_units
from qtool.evaluate.attribution.verdict import Verdict, judge
from qtool.evaluate.attribution.walk import OBSERVED, Arrays, needs, walk
from qtool.runtime.arena import release_arena
from qtool.runtime.lean import release
from qtool.signal import db

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples

Model: TypeAlias = "str | PathLike[str] | onnx.ModelProto"
Feeds: TypeAlias = "Mapping[str, Array]"

OBSERVED_BYTES = 192 << 20
"""Arrays that are looked at, all operators and samples together."""
BATCH_BYTES = 16 << 20
"""Arrays of the largest unit in a batch."""
HELD_BYTES = 16 << 20
"""Arrays of units that are worked on at a time; what is computed of them is some times as much."""
KEPT_BYTES = 48 << 20
"""Weights of sessions that live from one batch to the next, as the batches of a small model take less time than making
them."""
MOST_SAMPLES = 256
MOST_INJECTED = 16
MANY_INJECTED = 3
"""Samples from which a batch for injected errors is worth the sessions of all operators once more."""
_RARE = 2.0
"""How many times the noise of the error that was run a unit's has to be to be looked at once more."""
_MOST_LOOKS = 4
_ENOUGH = 0.8  # of the noise, to be removed by the last command
_MOST_OPTIONS = 6


@dataclass(frozen=True)
class Pair:
    """Two models, and the quantized operators of the second.

    Attributes:
        reference: Graph of the float model.
        quantized: Graph of the quantized model.
        units: Its quantized operators.
        parts: What each stands for in the float model.
        left_out: (node, reason) of the others.
        samples: Those to look at: all of them take the same branches.
        single: Whether they must be fed one by one.
    """

    reference: Graph
    quantized: Graph
    units: tuple[Unit, ...]
    parts: tuple[FloatPart, ...]
    left_out: tuple[tuple[str, str], ...]
    samples: Samples
    single: bool

    def name(self, number: int) -> str:
        """The name that ``--exclude`` takes for a unit: that of the user's model."""
        unit, part = self.units[number], self.parts[number]
        names = {node.name for node in self.reference.nodes}
        if unit.node in names or not part.heaviest.name:
            return unit.node
        return part.heaviest.name


def load_pair(float_model: Model, quant_model: Model, samples: Samples, layer_samples: int | None = None) -> Pair:
    """Read two models and find the quantized operators, those in branches that the samples take among them.

    Raises:
        ModelError: If one cannot be read.
        ConfigError: If the second has none.
    """
    ours, source = lazy_graph(float_model), lazy_graph(quant_model)
    branches = inline_branches(ours, source, samples, layer_samples)
    reference = Graph(ours)
    sink_dequantizers(source.proto)
    quantized = Graph(source)
    found = find_units(quantized, reference)
    found.left_out += branches.left_out
    units, parts = [], []
    for unit in found.units:
        part = float_part(unit, reference)
        if part is None:
            found.left_out.append((unit.node, "what it stands for in the float model was not recognized"))
        else:
            units.append(unit)
            parts.append(part)
    if not units:
        raise ConfigError(_nothing(found), hint="Are the models in the order FLOAT QUANTIZED, and made from one model?")
    left_out = tuple(found.left_out)
    return Pair(reference, quantized, tuple(units), tuple(parts), left_out, branches.samples, branches.single)


def _nothing(found: Units) -> str:
    if not found.left_out:
        return "The quantized model has no quantized operator that layers could be attributed to."
    node, reason = found.left_out[0]
    return f"No quantized operator could be matched with the float model; '{node}': {reason}."


def attribute(
    float_model: Model,
    quant_model: Model,
    samples: Samples,
    *,
    layer_samples: int | None = None,
    num_threads: int | None = None,
    calibration: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[InputTally], None] | None = None,
    without_vnni: bool = False,
) -> Attribution:
    """Attribute the noise of a quantized model to its operators.

    Args:
        float_model: The reference; a path if it has external data.
        quant_model: The quantized model, of qtool or another tool.
        samples: Inputs of the float model.
        layer_samples: Samples to look at, the first in order; by default as many as have some hundred megabytes of
            activations, at most 256.
        num_threads: Threads of each session.
        calibration: Files that the commands calibrate on; by default those beside the models and the data whose hash
            is the recorded one.
        progress: Called with (operators done, operators in all), all samples together.
        watch: Called at the end with what was seen of each quantized activation.
        without_vnni: Whether to judge operators as on a processor without VNNI, where sums of two products saturate:
            what that adds is then part of the noise of each, however little it is. Otherwise it is where the outputs
            would lose a tenth of a decibel there.

    Raises:
        ConfigError: If no quantized operator can be matched, or ``layer_samples`` is not positive.
        ModelError: If a model cannot be read or run.
        DataError: If the samples do not fit.
    """
    if layer_samples is not None and layer_samples < 1:
        raise ConfigError(f"Number of samples for layers is {layer_samples}; expected 1 or more.")
    pair = load_pair(float_model, quant_model, samples, layer_samples)
    run = _Run(pair, num_threads, progress)
    run.all(pair.samples, layer_samples)
    looks = [(run.first_feeds, run.errors.kept), *run.once_more()]
    run.close()  # the arena that its sessions shared is taken over
    measured: dict[int, float] = {}
    injected = [(feeds, [(pair.units[u].output, error) for u, error in kept]) for feeds, kept in looks]
    board = Switchboard(pair.reference, [name for _, errors in injected for name, _ in errors])
    for (feeds, errors), (_, kept) in zip(injected, looks, strict=True):
        found = board.output_noise(errors, feeds, num_threads)
        measured |= {u: noise for (u, _), noise in zip(kept, found, strict=True)}
    del board, injected, looks
    release_arena()
    release(cycles=False)
    if watch is not None:
        for tally in run.activations():
            watch(tally)
    verdict = judge(run.tallies, measured, run.injected, without_vnni=without_vnni)
    return _report(pair, run, verdict, float_model, quant_model, samples, calibration)


class _Run:
    """The pass over the samples."""

    def __init__(
        self,
        pair: Pair,
        num_threads: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.pair = pair
        self._in_float = products_in_float(pair.quantized)
        self.injected: dict[int, float] = {}  # unit -> noise beside the signal of the error that is run
        self._heard: dict[int, float] = {}  # unit -> most saturation beside the signal in a later batch
        self._loud: dict[int, tuple[float, Feeds]] = {}  # unit of those that it is most of -> the same, and the batch
        self.errors = Errors()
        self.samples = 0
        self.first_feeds: Feeds = {}
        self.misfits: dict[int, None] = {}
        self._progress = progress
        self._lock = Lock()
        self._workers = num_threads or available_cores()
        expected: dict[str, None] = {}
        found: dict[str, None] = {}
        for unit in pair.units:
            ours, theirs = needs(unit)
            expected |= dict.fromkeys(sorted(ours))
            found |= dict.fromkeys(sorted(theirs))
        self._models: tuple[SegmentedModel, ...] = tuple(
            SegmentedModel(graph.source, list(wanted), strict=False, observed=OBSERVED)
            for graph, wanted in ((pair.reference, expected), (pair.quantized, found))
        )
        there = [{*model.fed, *model.computed} for model in self._models]
        self.numbers = [
            number
            for number, unit in enumerate(pair.units)
            if all(names <= known for names, known in zip(needs(unit), there, strict=True))
        ]
        self.misfits |= dict.fromkeys(sorted(set(range(len(pair.units))) - set(self.numbers)))
        self.tallies = [self._tally(number) for number in range(len(pair.units))]
        self._largest = 1
        self._kept = 0

    def _tally(self, number: int) -> UnitTally:
        unit, part = self.pair.units[number], self.pair.parts[number]
        operator = Operator(unit, part, self.pair.quantized, self.pair.reference)
        return UnitTally(unit, operator)

    def all(self, samples: Samples, limit: int | None) -> None:
        """Look at the first samples."""
        first = samples.fixed_batch or 1
        nbytes = self._next(samples, first, first, errors=True)
        each = max(1, nbytes // max(1, self.samples))
        most = min(samples.count, limit if limit is not None else min(MOST_SAMPLES, OBSERVED_BYTES // each))
        size = first if self.pair.single else max(1, min(BATCH_BYTES // max(1, self._largest // first), MOST_SAMPLES))
        # the runs with injected errors are to cost about one pass over the samples
        injected = min(samples.count // MOST_MEASURED, size, MOST_INJECTED, most - self.samples)
        if injected > MANY_INJECTED and samples.batchable:
            self.errors = Errors()
            self._next(samples, injected, injected, errors=True)
        self._next(samples, (most - self.samples) // first * first, size, errors=False)

    def _next(self, samples: Samples, number: int, size: int, *, errors: bool) -> int:
        """Look at the next samples; the bytes of what was seen."""
        nbytes = 0
        if number <= 0:
            return 0
        for rows, feeds in samples.slice(self.samples, self.samples + number).counted_batches(size):
            if errors:
                self.first_feeds = feeds
            nbytes += self._batch(feeds, first=errors)
            self.samples += rows
        return nbytes

    def _batch(self, feeds: Feeds, *, first: bool) -> int:
        """Add a batch to all tallies; the bytes that were looked at.

        Units are worked on at a time, as many as there are threads, and as many wait; the batch is done with before the
        next one, so that no sum depends on which was first.
        """
        units = [self.pair.units[number] for number in self.numbers]
        reference, candidate = self._models
        nbytes = held = done = 0
        pending: deque[tuple[int, Future[None]]] = deque()

        def finish() -> None:
            nonlocal held, done
            size, future = pending.popleft()
            future.result()
            held -= size
            done += 1
            if self._progress is not None and first:
                self._progress(done, len(units))

        with ThreadPoolExecutor(self._workers) as pool:
            try:
                for position, (_, arrays) in enumerate(walk(reference, candidate, units, feeds)):
                    size = sum(a.nbytes for a in (*arrays.expected.values(), *arrays.found.values()))
                    nbytes += size
                    self._largest = max(self._largest, size)
                    while pending and (len(pending) >= 2 * self._workers or held + size > HELD_BYTES):
                        finish()
                    held += size
                    pending.append((size, pool.submit(self._unit, self.numbers[position], arrays, feeds, first)))
                    del arrays
                while pending:
                    finish()
            finally:
                for _, one in pending:
                    one.cancel()
        return nbytes

    def _unit(self, number: int, arrays: Arrays, feeds: Feeds, first: bool) -> None:
        tally = self.tallies[number]
        error = tally.update(arrays, feeds, wanted=first)
        ratio = 0.0
        if error is not None:
            if first:
                error = self._saturated(number, tally, arrays, error)
            elif tally.saturable:
                x = arrays.expected[tally.unit.operands[0].tensor]
                count, changed = of_rows(tally.unit, self.pair.quantized, x, tally.saturable)
                tally.add_saturation(count, changed)
                ratio = changed / (energy(arrays.expected[tally.unit.output]) or 1.0) if count else 0.0
        with self._lock:
            if error is None:
                self.misfits[number] = None
            elif not first:
                self._hear(number, ratio, feeds)
            else:
                self.errors.add(number, tally.noise_to_signal(saturation=True), error)
            if tally.operator.nbytes <= KEPT_BYTES - self._kept:
                self._kept += tally.operator.keep()
        tally.operator.close()

    def _saturated(self, number: int, tally: UnitTally, arrays: Arrays, error: Array) -> Array:
        """The own error, with what saturation adds."""
        unit = tally.unit
        if tally.saturable is None:
            in_float = unit.node in self._in_float
            tally.saturable = () if in_float else saturable_channels(unit, self.pair.quantized)
        if tally.saturable:
            changed = change(unit, self.pair.quantized, arrays.expected[unit.operands[0].tensor], tally.saturable)
            if changed is not None and changed.shape == error.shape:
                tally.add_saturation(changed.count, changed.energy)
                error = changed.add_to(error)
        signal = energy(arrays.expected[unit.output])
        self.injected[number] = energy(error) / signal if signal else 0.0
        return error

    def _hear(self, number: int, ratio: float, feeds: Feeds) -> None:
        """Keep the batch in which a unit saturates most, of the units that do so most: memory must not grow."""
        if ratio <= self._heard.get(number, 0.0):
            return
        self._heard[number] = ratio
        self._loud[number] = ratio, feeds
        if len(self._loud) > _MOST_LOOKS:
            del self._loud[min(self._loud, key=lambda unit: (self._loud[unit][0], -unit))]

    def once_more(self) -> Iterator[tuple[Feeds, list[tuple[int, Array]]]]:
        """Errors of units that saturate far more in a later batch than in the one whose errors are kept.

        Yields:
            A batch, and (unit, error) of those that saturate most in it.
        """
        ratios = [tally.noise_to_signal(saturation=True) for tally in self.tallies]
        rare = [
            number
            for number in sorted(self._loud)
            if number not in self.misfits and ratios[number] > _RARE * self.injected.get(number, 0.0)
        ]
        reference, candidate = self._models
        while rare:
            feeds = self._loud[rare[0]][1]
            chosen = [number for number in rare if self._loud[number][1] is feeds]
            rare = [number for number in rare if number not in chosen]
            kept = []
            units = [self.pair.units[number] for number in chosen]
            for number, (_, arrays) in zip(chosen, walk(reference, candidate, units, feeds), strict=True):
                tally = self._tally(number)
                tally.saturable = self.tallies[number].saturable
                error = tally.update(arrays, feeds, wanted=True)
                if error is not None:
                    kept.append((number, self._saturated(number, tally, arrays, error)))
                tally.operator.close()
            yield feeds, kept

    def activations(self) -> Iterator[InputTally]:
        """What was seen of each quantized activation; of one that several units read, each time the same."""
        for tally in self.tallies:
            yield from tally.inputs
            if tally.output is not None:
                yield tally.output

    def close(self) -> None:
        """Give the sessions back."""
        self._models = ()
        for tally in self.tallies:
            tally.operator.close(kept=True)


def _report(
    pair: Pair,
    run: _Run,
    verdict: Verdict,
    float_model: Model,
    quant_model: Model,
    samples: Samples,
    calibration: Sequence[str] | None,
) -> Attribution:
    starting = Starting.of(pair.quantized.source.proto, float_model, quant_model, samples, calibration)
    target = (starting.origin.config or {}).get("target")
    rows, advices = [], {}
    for number, tally in enumerate(run.tallies):
        if number in run.misfits:
            continue
        name = pair.name(number)
        part = pair.parts[number]
        advice = advise(
            tally, part, pair.reference, pair.quantized, name, saturation=verdict.without_vnni, target=target
        )
        row = _row(tally, name, verdict.shares[number], number in verdict.measured, advice)
        rows.append(row)
        advices[id(row)] = advice
    layers = ranked(rows)
    left_out = [
        *pair.left_out,
        *((pair.name(n), "the two models give it arrays that do not compare") for n in run.misfits),
    ]
    advised = [(row, advices[id(row)]) for row in layers]
    commands, notes = commands_of(starting, _choices(advised, starting.origin))
    notes += verdict.notes
    return Attribution(
        layers,
        run.samples,
        tuple(commands),
        tuple(left_out),
        tuple(notes),
        saturation_loss_db=verdict.loss_db,
        without_vnni=verdict.without_vnni,
    )


def _row(tally: UnitTally, name: str, share: float | None, measured: bool, advice: Advice) -> LayerReport:
    unit = tally.unit
    decibels = {part: db(tally.signal, value) if tally.elements else None for part, value in tally.energies.items()}
    reads_codes = bool(tally.inputs) or tally.output is not None
    fewest = min(tally.inputs, key=lambda one: one.report().used, default=None)
    histogram = None if fewest is None else fewest.report()
    own = decibels["own"]
    worth = (share is not None and share >= WORTH_SHARE) or (own is not None and not own >= WORTH_DB)
    ranges = [*tally.inputs, *([] if tally.output is None else [tally.output])]
    return LayerReport(
        node=name,
        op_type=unit.op_type,
        output=unit.output,
        own_db=own,
        weight_db=decibels["weight"] if tally.operator.has_own_weights else None,
        clip_db=decibels["clip"] if reads_codes else None,
        round_db=decibels["round"] if reads_codes else None,
        inherited_db=decibels["inherited"],
        total_db=decibels["total"],
        share=share,
        share_measured=measured,
        clipped=max((one.clipped for one in ranges), default=None),
        levels_used=None if histogram is None else histogram.used,
        levels=None if histogram is None else histogram.codes,
        weight=None if unit.weight is None else str(unit.weight),
        saturated=tally.saturated or None,
        saturation_db=db(tally.signal, tally.saturation) if tally.saturated else None,
        own_without_vnni_db=db(tally.signal, tally.energies["own"] + tally.saturation) if tally.saturated else None,
        cause=advice.cause,
        suggestion=" ".join(_words(advice.options)) or None if worth else None,
        histograms=tuple(one.report() for one in ranges),
    )


def _words(options: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    import shlex

    for option, value in options:
        yield option
        if value is not None:
            yield shlex.quote(value)


def _choices(rows: Sequence[tuple[LayerReport, Advice]], origin: Origin) -> Iterator[tuple[list[Option], str]]:
    """What to do about the first row, about as many as make most of the noise, and what else may help."""
    if not rows or rows[0][1].cause is Cause.NONE:
        return
    first_row, first = rows[0]
    share = f" ({first_row.share:.0%} of the noise)" if first_row.share is not None else ""
    yield list(first.options), f"{first.why}{share}"
    together, covered, taken = list(first.options), first_row.share or 0.0, 1
    for row, advice in rows[1:]:
        if covered >= _ENOUGH or len(together) >= _MOST_OPTIONS or not row.share or not advice.options:
            break
        together += [option for option in advice.options if option not in together]
        covered += row.share
        taken += 1
    if taken > 1:
        yield together, f"the worst {taken} operators, {covered:.0%} of the noise"
    if first.cause is Cause.SATURATION:
        yield [("--exclude", literal(first_row.node))], f"{first_row.node} stays float, whatever the processor"
        _, other = next((pair for pair in rows if pair[1].cause is not Cause.SATURATION), (None, first))
        if other is not first and other.options:
            yield list(other.options), f"for processors with VNNI only: {other.why}"
    if first.cause is not Cause.WEIGHT or first_row.weight is None or not first_row.weight.endswith("per tensor"):
        return
    settings = origin.config or {}
    if any(override.get("per_channel") is False for override in settings.get("overrides", ())):
        own = f"{literal(first_row.node)}=per_channel:true"
        yield [("--override", own)], f"a scale for each channel of the weight of {first_row.node}"
    elif settings.get("per_channel") is False:
        yield [("--per-channel", None)], "a scale for each channel of every weight"

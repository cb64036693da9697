"""What would a processor without VNNI make of this model on these samples?

There, runtimes multiply uint8 activations by int8 weights in pairs whose sum saturates to int16 (``vpmaddubsw``). The
check runs the whole quantized model that way, bit for bit, as the ``spec-avx2`` engine does, counts the pairs that
saturate in each product, and compares the outputs with the float model beside those of an exact run. What the processor
at hand can do does not matter.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qtool.errors import QtoolError
from qtool.evaluate.attribution.saturation import NOTABLE_DB
from qtool.evaluate.checks.result import CheckResult, Finding, State, counted
from qtool.evaluate.checks.subject import Subject
from qtool.runtime.products import float_reason, is_depthwise, quantized_products

if TYPE_CHECKING:
    from qtool.runtime.spec.saturating import Record

NAME, TITLE = "saturation", "Accuracy on a processor without VNNI"

SAMPLES = 8
SECONDS = 20.0
"""After this long no further sample is run; one always is."""
_LISTED = 20

Array = npt.NDArray[Any]


class _Noise:
    """Signal and noise of the outputs of one engine."""

    def __init__(self) -> None:
        self.signal: dict[str, float] = {}
        self.noise: dict[str, float] = {}

    def add(self, reference: dict[str, Array], candidate: dict[str, Array]) -> None:
        """Add one run; outputs that hold no floats, or whose shapes differ, are left out."""
        for name, expected in reference.items():
            if expected.dtype.kind != "f" or name not in candidate or candidate[name].shape != expected.shape:
                continue
            a, b = expected.astype(np.float64), candidate[name].astype(np.float64)
            finite = np.isfinite(a)  # masks of -inf are no signal
            self.signal[name] = self.signal.get(name, 0.0) + float(np.square(a[finite]).sum())
            self.noise[name] = self.noise.get(name, 0.0) + float(np.square(a[finite] - b[finite]).sum())

    def sqnr(self, name: str) -> float:
        """Decibels; inf without noise, -inf without signal."""
        signal, noise = self.signal[name], self.noise[name]
        if not noise:
            return math.inf
        return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def check(subject: Subject) -> CheckResult:
    """Run the model exactly and with saturating pairs, and say what the difference costs."""
    from qtool.runtime import create_session
    from qtool.runtime.spec.saturating import Saturating
    from qtool.runtime.spec.session import SpecSession

    view = subject.graph
    able = [
        p
        for p in quantized_products(view)
        if p.can_saturate and not is_depthwise(p, view) and float_reason(p, view) is None
    ]
    if not able:
        return CheckResult(
            NAME, TITLE, "ok", "No product of uint8 and int8 is computed on codes: nothing can saturate."
        )
    saturating = Saturating()
    try:
        threads = subject.num_threads
        session = SpecSession(subject.quant_model, saturating=saturating, num_threads=threads)
        exact = create_session(subject.quant_model, engine="spec", num_threads=threads)
    except QtoolError as error:
        return CheckResult(NAME, TITLE, "skipped", f"The spec engine cannot run the model: {error.message}")
    plain, there = _Noise(), _Noise()
    start, count = time.perf_counter(), 0
    for feeds in subject.first(SAMPLES).batches(1):
        reference = subject.float_session.run(feeds)
        before = sum(layer.saturated for layer in saturating.record.values())
        found = session.run(feeds)
        saturated = sum(layer.saturated for layer in saturating.record.values()) > before
        there.add(reference, found)
        # without a saturating pair both engines compute the same sums; a QDQ product is rounded once more or less
        plain.add(reference, exact.run(feeds) if saturated else found)
        count += 1
        if time.perf_counter() - start > SECONDS:
            break
    return _result(saturating.record, plain, there, count, _advice(subject))


def _advice(subject: Subject) -> str:
    """What to type next; a model that was made for such processors needs more samples to find the layers by."""
    settings = next((p.value for p in subject.light_proto.metadata_props if p.key == "qtool.config"), "")
    return "more --calib samples" if '"target": "avx2"' in settings else "--target avx2"


def _result(record: Record, plain: _Noise, there: _Noise, count: int, advice: str) -> CheckResult:
    layers = sorted(record.items(), key=lambda item: -item[1].saturated)
    pairs, total = sum(layer.pairs for _, layer in layers), sum(layer.saturated for _, layer in layers)
    hit = [(name, layer) for name, layer in layers if layer.saturated]
    values: dict[str, bool | int | float | str | None] = {
        "layers": len(layers),
        "saturating_layers": len(hit),
        "pairs": pairs,
        "saturated": total,
    }
    if not total:
        summary = f"No pair of products saturates in {counted(len(layers), 'layer')} ({counted(count, 'sample')})."
        return CheckResult(NAME, TITLE, "ok", summary, values=values, samples=count)
    drops = {}
    for name in plain.noise:
        before, after = plain.sqnr(name), there.sqnr(name)
        values |= {f"sqnr:{name}": before, f"sqnr_without_vnni:{name}": after}
        drops[name] = 0.0 if before == after else before - after
    worst = max(drops, key=lambda name: drops[name], default=None)
    findings = tuple(_finding(name, layer.saturated, layer.pairs, advice) for name, layer in hit[:_LISTED])
    summary = f"{total} of {pairs} pairs saturate, in {len(hit)} of {counted(len(layers), 'layer')}"
    if worst is None:
        return CheckResult(NAME, TITLE, "flagged", f"{summary}.", findings, values, count)
    summary += (
        f": SQNR of '{worst}' is {plain.sqnr(worst):.2f} dB with VNNI and {there.sqnr(worst):.2f} dB without "
        f"({counted(count, 'sample')})."
    )
    values["drop_db"] = drops[worst]
    state: State = "flagged" if drops[worst] > NOTABLE_DB else "ok"
    return CheckResult(NAME, TITLE, state, summary, findings, values, count)


def _finding(name: str, saturated: int, pairs: int, advice: str) -> Finding:
    share = saturated / pairs
    text = f"{saturated} of {pairs} pairs saturate ({share:.2%})"
    return Finding(name, text, advice, {"saturated": saturated, "pairs": pairs, "share": share})

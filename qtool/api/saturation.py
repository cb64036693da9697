"""The check of int16 saturation, for targets that add products in pairs: one more run over the first samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qtool.api.data import runnable_proto

if TYPE_CHECKING:
    import onnx_ir as ir

    from qtool.calibrate.saved import Batch
    from qtool.plan import Plan


def without_saturation(model: ir.Model, plan: Plan, batches: Sequence[Batch], *, num_threads: int | None) -> Plan:
    """A plan whose layers have 7-bit weights where int16 sums saturate on samples.

    The float model is run on the samples that a statistics file keeps (4 of up to 32 MB, and up to 64 small ones), so
    that data and their statistics give the same result; it is run in segments, and of each layer's input a bounded
    number of rows is looked at, one sample at a time.

    Args:
        model: The prepared model.
        plan: A plan with parameters.
        batches: (number of samples, inputs by name); without any, all layers that could saturate get 7 bits.
        num_threads: Threads of the kernels. Does not change the result.
    """
    from qtool.calibrate.segments import SegmentedModel, read_graph
    from qtool.plan.saturation import ROWS, ROWS_PER_SAMPLE, saturable_layers, with_seven_bits

    layers = saturable_layers(model, plan)
    if layers and batches:
        readers: dict[str, list[Any]] = {}
        for layer in layers:
            readers.setdefault(layer.tensor, []).append(layer)
        rows = min(ROWS_PER_SAMPLE, ROWS // len(batches))
        with runnable_proto(model) as proto:
            segments = SegmentedModel(read_graph(proto), list(readers), per_segment=1)
            for _, feeds in batches:
                if all(layer.decided for layer in layers):
                    break
                for arrays, _ in segments.steps(feeds):
                    for name, array in arrays.items():
                        for layer in readers[name]:
                            layer.observe(array, limit=rows, num_threads=num_threads)
        for layer in layers:
            layer.count(num_threads=num_threads)
    return with_seven_bits(model, plan, layers, checked=sum(count for count, _ in batches))

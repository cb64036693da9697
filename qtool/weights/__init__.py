"""Weights without samples: scales and zero points of a constant, its codes, and what they are worth.

A method chooses parameters for the columns of a weight (``method.py`` has the contract); each is a file here and an
entry of ``METHODS``. To add one, write the class and list it below; exactly one method applies to a pair of types.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.dtypes import QDType
from qtool.granularity import Granularity, PerAxis, PerBlock
from qtool.qparams import QParams
from qtool.weights.absmax import AbsMax
from qtool.weights.asymmetric import Asymmetric
from qtool.weights.blocks import cut
from qtool.weights.method import Method, Target
from qtool.weights.minifloat import Float4, Microscaling
from qtool.weights.signed import Signed

_ENERGY_CHUNK = 1 << 16
_SEARCH_WORK = 32  # nanoseconds for an element, about

METHODS: tuple[Method, ...] = (AbsMax(), Signed(), Asymmetric(), Float4(), Microscaling())

__all__ = ["METHODS", "choose_parameters", "codes_of", "error_energies", "method_for", "restored"]


def method_for(target: Target) -> Method:
    """The method for a pair of types."""
    (found,) = [method for method in METHODS if method.applies(target)]
    return found


def choose_parameters(
    array: npt.NDArray[Any],
    dtype: QDType,
    granularity: Granularity,
    *,
    scale_type: QDType | None = None,
    num_threads: int | None = None,
) -> QParams:
    """Scales and zero points of a weight, by round to nearest with the search that its type deserves.

    Args:
        array: Finite weight of any shape; float32, float16 or bfloat16. Its type is that of the scales.
        dtype: Element type of the codes.
        granularity: How the weight is cut; the last block may be partial.
        scale_type: Type of the scales if it is not the weight's own: e8m0, for floats only.
        num_threads: Threads; the result does not depend on it.

    Returns:
        Parameters whose scale may be negative (int4, int2). A block of zeros has scale 1.
    """
    storage = array.dtype if scale_type is None else scale_type.numpy
    target = Target(dtype, np.dtype(storage))
    method = method_for(target)
    blocks = cut(array, granularity)
    count = blocks.columns.shape[1]
    scale, zero = np.empty(count, np.float32), np.empty(count, np.float32)

    def work(part: slice) -> None:
        # an error beyond float32 loses the comparison, as it should
        with np.errstate(over="ignore", invalid="ignore"):
            scale[part], zero[part] = method.choose(blocks.part(part), target)

    threads = kernels.effective_num_threads(num_threads, array.size * _SEARCH_WORK)
    if threads == 1 or count == 1:
        for part in blocks.parts():
            work(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, blocks.parts()))
    return QParams(dtype, blocks.scales(scale.astype(storage)), blocks.scales(zero.astype(dtype.numpy)), granularity)


def codes_of(array: npt.NDArray[Any], params: QParams, *, num_threads: int | None = None) -> npt.NDArray[Any]:
    """The codes nearest to a weight: saturate(rint(w / s) + z), the division in float32 whatever the types.

    Args:
        array: The weight.
        params: Its parameters.
        num_threads: Threads; the result does not depend on it.
    """
    axis, block = _layout(params.granularity)
    return kernels.quantize(
        array.astype(np.float32, copy=False),
        params.scale.astype(np.float32),
        params.zero_point,
        axis=axis,
        block_size=block,
        num_threads=num_threads,
    )


def restored(codes: npt.NDArray[Any], params: QParams, *, num_threads: int | None = None) -> npt.NDArray[np.float32]:
    """What DequantizeLinear makes of codes, in float32."""
    axis, block = _layout(params.granularity)
    return kernels.dequantize(
        codes,
        params.scale,
        params.zero_point,
        axis=axis,
        block_size=block,
        output_dtype=np.float32,
        num_threads=num_threads,
    )


def error_energies(array: npt.NDArray[Any], other: npt.NDArray[np.float32]) -> tuple[float, float]:
    """(sum of squares of a finite weight, of its differences from another), in float64, a cache's worth at a time.

    Args:
        array: The weight, of any float type.
        other: What it became, of the same shape.
    """
    x, y = array.reshape(-1), other.reshape(-1)
    signal = noise = 0.0
    for start in range(0, x.size, _ENERGY_CHUNK):
        part = x[start : start + _ENERGY_CHUNK].astype(np.float64)
        signal += float(np.sum(part * part))
        part -= y[start : start + _ENERGY_CHUNK]
        noise += float(np.sum(part * part))
    return signal, noise


def _layout(granularity: Granularity) -> tuple[int, int]:
    if isinstance(granularity, PerBlock):
        return granularity.axis, granularity.size
    return (granularity.axis if isinstance(granularity, PerAxis) else 1), 0

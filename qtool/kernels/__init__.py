"""The face of the compiled core: validation, allocation, threads, views of ml_dtypes arrays, packing.

Only this package imports ``qtool._core``, and other code imports only what is named here. Each function has a twin of
the same semantics in :mod:`qtool.reference`, which it equals bit for bit.
"""

from qtool.kernels.ceilings import peak
from qtool.kernels.convolution import PackedConv, conv_integer, pack_conv_weights, qlinear_conv
from qtool.kernels.elementwise import (
    MinMax,
    abs_mean,
    absmax,
    dequantize,
    dynamic_quantize_linear,
    from_e8m0,
    histogram,
    min_max,
    pack,
    quantize,
    to_e8m0,
    unpack,
)
from qtool.kernels.matmul import PackedB, matmul_integer, pack_b, qlinear_matmul
from qtool.kernels.observing import Observation, Observed, observable, observe, observe_all
from qtool.kernels.saturation import count_saturating_pairs, matmul_saturating
from qtool.kernels.threads import IsaInfo, KernelChoice, cap_isa, effective_num_threads, isa_info

__all__ = [
    "IsaInfo",
    "KernelChoice",
    "MinMax",
    "Observation",
    "Observed",
    "PackedB",
    "PackedConv",
    "abs_mean",
    "absmax",
    "cap_isa",
    "conv_integer",
    "count_saturating_pairs",
    "dequantize",
    "dynamic_quantize_linear",
    "effective_num_threads",
    "from_e8m0",
    "histogram",
    "isa_info",
    "matmul_integer",
    "matmul_saturating",
    "min_max",
    "observable",
    "observe",
    "observe_all",
    "pack",
    "pack_b",
    "pack_conv_weights",
    "peak",
    "qlinear_conv",
    "qlinear_matmul",
    "quantize",
    "to_e8m0",
    "unpack",
]

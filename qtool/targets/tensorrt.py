"""NVIDIA TensorRT: explicit quantization, symmetric, and fewest Q/DQ pairs.

It refuses zero points other than 0 and a DequantizeLinear of int32. It fuses what follows a Conv into it, sum with the
skip connection included, if the skip connection is quantized; a QuantizeLinear right behind the Conv would break that.
"""

from qtool.targets.base import DOCUMENTED, Source, Target

_DOCS = "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library"

TARGET = Target(
    name="tensorrt",
    title="NVIDIA TensorRT, explicit quantization",
    formats=("qdq",),
    activations=("int8",),
    weights=("int8",),
    stored=("int8", "int4"),
    symmetric_activations=True,
    zero_points=False,
    int32_bias=False,
    convs_write_codes=False,
    quantized_residuals=True,
    left_float={"ConvTranspose": "TensorRT wants its input quantized as well, which qtool does not write"},
    evidence=DOCUMENTED,
    sources=(
        Source("TensorRT, Working with Quantized Types", f"{_DOCS}/work-quantized-types.html"),
        Source("TensorRT, Explicit Quantization", f"{_DOCS}/quantized-types-explicit-quantization.html"),
        Source("zero points must be all zeros", "https://github.com/NVIDIA/TensorRT/issues/2774"),
        Source("no DequantizeLinear of an int32 bias", "https://github.com/onnx/onnx-tensorrt/issues/850"),
    ),
)

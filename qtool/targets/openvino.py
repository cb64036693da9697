"""OpenVINO on CPUs: Q/DQ pairs become its own low-precision operators; u8 or s8 activations, s8 weights.

It fuses what follows a Conv into it: Relu, HardSwish, the sum with a quantized skip connection. A graph that
quantizes the result of every Conv takes up to twice the time there, at no better accuracy.
An integer Conv without a bias whose result is read twice loses its scale (openvino 2026.4): 0 dB. With a QuantizeLinear
right behind it, or a bias, it is right.
"""

from qtool.targets.base import MEASURED, Source, Target

_DOCS = "https://docs.openvino.ai/2024/documentation/openvino-extensibility/openvino-plugin-library/advanced-guides"

TARGET = Target(
    name="openvino",
    title="OpenVINO on CPUs",
    formats=("qdq",),
    activations=("uint8", "int8"),
    weights=("int8", "uint8"),
    stored=("int8", "uint8", "int4", "uint4"),
    convs_write_codes=False,
    shared_convs_write_codes=True,
    quantized_residuals=True,
    evidence=MEASURED,
    sources=(
        Source("openvino 2026.4 runs the results, with integer Convs and products"),
        Source("OpenVINO, Quantized models compute and restrictions", f"{_DOCS}/quantized-models.html"),
    ),
)

"""OpenVINO on CPUs: Q/DQ pairs become its own low-precision operators; u8 or s8 activations, s8 weights."""

from qtool.targets.base import MEASURED, Source, Target

_DOCS = "https://docs.openvino.ai/2024/documentation/openvino-extensibility/openvino-plugin-library/advanced-guides"

TARGET = Target(
    name="openvino",
    title="OpenVINO on CPUs",
    formats=("qdq",),
    activations=("uint8", "int8"),
    weights=("int8", "uint8"),
    stored=("int8", "uint8", "int4", "uint4"),
    evidence=MEASURED,
    sources=(
        Source("openvino 2026.4 runs the results, with integer Convs and products"),
        Source("OpenVINO, Quantized models compute and restrictions", f"{_DOCS}/quantized-models.html"),
    ),
)

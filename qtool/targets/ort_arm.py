"""onnxruntime on 64-bit ARM: its integer kernels multiply signed by signed bytes."""

from qtool.targets.base import ALL_ACTIVATIONS, ALL_STORED, ALL_WEIGHTS, DOCUMENTED, Source, Target

TARGET = Target(
    name="ort-arm",
    title="onnxruntime on 64-bit ARM",
    formats=("qlinear", "qdq"),
    activations=("int8", *(a for a in ALL_ACTIVATIONS if a != "int8")),
    weights=ALL_WEIGHTS,
    stored=ALL_STORED,
    symmetric_activations=True,
    dynamic_weights=("int8", "uint8"),
    microsoft_operators=True,
    evidence=DOCUMENTED,
    sources=(
        Source(
            "onnxruntime, Quantize ONNX models",
            "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
        ),
    ),
)

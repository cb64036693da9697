"""onnxruntime on x86-64 without VNNI: vpmaddubsw adds two products of u8 x s8 in int16, which saturates."""

from qtool.targets.base import ALL_ACTIVATIONS, ALL_STORED, ALL_WEIGHTS, DOCUMENTED, Source, Target

TARGET = Target(
    name="avx2",
    title="onnxruntime on x86-64 without VNNI",
    formats=("qlinear", "qdq"),
    activations=ALL_ACTIVATIONS,
    weights=ALL_WEIGHTS,
    stored=ALL_STORED,
    # uint8 x uint8 is computed exactly, and there are no samples to find out where uint8 x int8 is not
    dynamic_weights=("uint8", "int8"),
    microsoft_operators=True,
    saturating_pairs=True,
    evidence=DOCUMENTED,
    sources=(
        Source(
            "onnxruntime, Quantize ONNX models",
            "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
        ),
        Source("saturation is simulated to the bit, on calibration samples; onnxruntime's own kernels were not run"),
    ),
)

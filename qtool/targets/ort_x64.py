"""onnxruntime on x86-64 processors with VNNI or AMX: the default."""

from qtool.targets.base import ALL_ACTIVATIONS, ALL_STORED, ALL_WEIGHTS, MEASURED, Source, Target

TARGET = Target(
    name="ort-x64",
    title="onnxruntime on x86-64 with VNNI or AMX",
    formats=("qlinear", "qdq"),
    activations=ALL_ACTIVATIONS,
    weights=ALL_WEIGHTS,
    stored=ALL_STORED,
    dynamic_weights=("int8", "uint8"),
    microsoft_operators=True,
    evidence=MEASURED,
    sources=(Source("onnxruntime 1.32: counts of fused nodes, latency and accuracy of each pattern"),),
)

"""Qualcomm AI Engine Direct, through the QNN execution provider of onnxruntime: scales per channel for Convs only."""

from qtool.targets.base import DOCUMENTED, Source, Target

TARGET = Target(
    name="qnn",
    title="Qualcomm QNN (HTP), through onnxruntime",
    formats=("qdq",),
    activations=("uint8", "uint16"),
    weights=("int8", "uint8"),
    stored=(),
    per_tensor_weights=frozenset(("MatMul", "Gemm")),
    evidence=DOCUMENTED,
    sources=(
        Source(
            "onnxruntime, QNN Execution Provider",
            "https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html",
        ),
        Source("get_qnn_qdq_config of onnxruntime 1.32: Conv per channel on axis 0, MatMul per tensor"),
    ),
)

"""A file for a runtime that is not known: the 8-bit Q/DQ forms of opset 13, no newer types, nothing blocked."""

from qtool.targets.base import DOCUMENTED, Source, Target

TARGET = Target(
    name="portable",
    title="any runtime with QuantizeLinear of opset 13",
    formats=("qdq", "qlinear"),
    activations=("uint8", "int8"),
    weights=("int8", "uint8"),
    stored=("int8", "uint8"),
    max_opset=17,
    evidence=DOCUMENTED,
    sources=(Source("ONNX, versions of operators", "https://onnx.ai/onnx/operators/"),),
)

"""Why an operator without a handler stays float. ``expected`` reasons need nobody's attention."""

from __future__ import annotations

_SHAPE = "works on shapes or integers"
_NORM = "normalization stays float"
_TRANSCENDENTAL = "the runtime has no integer form of it"
_PROBABILITIES = "codes are too coarse for small probabilities, so it stays float"
_ORDER = "it orders by value, and codes would make ties"
_RECURRENT = "recurrent states stay float; only its weights could be quantized, which needs dynamic mode"
_CONTROL = "the nodes inside its subgraphs stay float"
# of modes that walk subgraphs, with whether it is by design
CONTROL_WALKED = dict.fromkeys(
    ("If", "Loop", "Scan", "SequenceMap"), ("the nodes inside its subgraphs are decided one by one", True)
)

# op -> (reason, expected)
REASONS: dict[str, tuple[str, bool]] = {
    **dict.fromkeys(
        (
            "Shape",
            "Size",
            "Range",
            "NonZero",
            "Cast",
            "CastLike",
            "ConstantOfShape",
            "Equal",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "And",
            "Or",
            "Not",
            "Xor",
            "OneHot",
            "NonMaxSuppression",
            "Mod",
            "IsNaN",
            "IsInf",
            "Constant",
            "RandomNormal",
            "RandomUniform",
            "EyeLike",
            "Unique",
            "BitShift",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseNot",
            "BitwiseXor",
        ),
        (_SHAPE, True),
    ),
    **dict.fromkeys(
        (
            "LayerNormalization",
            "RMSNormalization",
            "GroupNormalization",
            "InstanceNormalization",
            "MeanVarianceNormalization",
            "LpNormalization",
            "LRN",
            "BatchNormalization",
            "Pow",
            "Sqrt",
            "Reciprocal",
            "ReduceMean",
            "ReduceSum",
            "ReduceSumSquare",
            "ReduceL1",
            "ReduceL2",
            "ReduceProd",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "CumSum",
        ),
        (_NORM, True),
    ),
    **dict.fromkeys(
        (
            "Hardmax",
            "Exp",
            "Log",
            "Erf",
            "Gelu",
            "Tanh",
            "HardSigmoid",
            "HardSwish",
            "Swish",
            "Mish",
            "Elu",
            "Selu",
            "Celu",
            "ThresholdedRelu",
            "Softplus",
            "Softsign",
            "PRelu",
            "Sub",
            "Neg",
            "Abs",
            "Sign",
            "Floor",
            "Ceil",
            "Round",
            "Sin",
            "Cos",
            "Tan",
            "Sinh",
            "Cosh",
            "Asin",
            "Acos",
            "Atan",
            "Asinh",
            "Acosh",
            "Atanh",
            "Min",
            "Max",
            "Mean",
            "Sum",
            "Einsum",
            "Dropout",
            "GlobalMaxPool",
            "GlobalLpPool",
            "LpPool",
            "Attention",
            "RotaryEmbedding",
            "ScatterND",
            "ScatterElements",
            "Scatter",
            "GridSample",
            "RoiAlign",
            "MaxRoiPool",
            "Trilu",
            "Det",
            "Upsample",
            "DeformConv",
            "Col2Im",
            "CenterCropPad",
        ),
        (_TRANSCENDENTAL, True),
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), (_PROBABILITIES, True)),
    **dict.fromkeys(("TopK", "ArgMin"), (_ORDER, True)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (_RECURRENT, False)),
    **dict.fromkeys(("Loop", "Scan", "SequenceMap"), (_CONTROL, False)),
    "If": CONTROL_WALKED["If"],
}


def reason(op_type: str, domain: str) -> tuple[str, bool]:
    """(reason, expected) for an operator that no handler takes."""
    if domain not in ("", "ai.onnx"):
        return f"operator of the domain '{domain}'", False
    return REASONS.get(op_type, ("no handler for this operator", False))

"""QDQ form: every quantized operator stays as it is, between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from typing import ClassVar

from qtool.emit.rewriter import Rewriter
from qtool.plan import Decision


class QdqRewriter(Rewriter):
    """What TensorRT, OpenVINO and QNN read, and onnxruntime fuses."""

    format: ClassVar[str] = "qdq"

    def is_integer_operator(self, decision: Decision) -> bool:
        """See :meth:`Rewriter.is_integer_operator`: none."""
        del decision
        return False

    def integer_operator(self, decision: Decision) -> None:
        """See :meth:`Rewriter.integer_operator`."""
        raise AssertionError(f"Bug: {decision.node} has no integer operator in QDQ form")

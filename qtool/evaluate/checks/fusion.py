"""How many of the quantized products does onnxruntime compute on codes?

A MatMul, Gemm or Conv between DequantizeLinear nodes that onnxruntime does not fuse runs in float, after dequantizing
its weight in every run: it rounds for nothing and is slower than the float model. The graph that onnxruntime makes of
the model says which those are; the rules of ``runtime/products.py`` say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtool.evaluate.attribution.command import exclusion
from qtool.evaluate.checks.result import CheckResult, Finding
from qtool.evaluate.checks.subject import Subject
from qtool.runtime.products import CLAMPS, GraphView, Product, float_reason, quantized_products

if TYPE_CHECKING:
    from qtool.runtime.optimized import OptimizedNode

NAME, TITLE = "fusion", "Products that onnxruntime computes on codes"

_IN_FLOAT = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Conv", "FusedConv", "ConvTranspose"})


def check(subject: Subject) -> CheckResult:
    """Count quantized products that have a kernel on codes in the optimised graph, and list the others."""
    from qtool.runtime.optimized import optimized_nodes

    view = subject.graph
    products = list(quantized_products(view))
    if not products:
        return CheckResult(NAME, TITLE, "skipped", "The model has no quantized MatMul, Gemm or Conv.")
    left = in_float(optimized_nodes(subject.quant_model))
    findings = tuple(_finding(product, view) for product in products if _is_in(product, view, left))
    n, m = len(products) - len(findings), len(products)
    kinds = ", ".join(sorted({p.node.op_type.removeprefix("QLinear").removesuffix("Integer") for p in products}))
    summary = f"onnxruntime computes {n} of {m} quantized products ({kinds}) on codes."
    return CheckResult(NAME, TITLE, "flagged" if findings else "ok", summary, findings, {"fused": n, "products": m})


def in_float(nodes: list[OptimizedNode]) -> set[str]:
    """Names and outputs of the float products of an optimised graph."""
    found: set[str] = set()
    for node in nodes:
        if node.op_type in _IN_FLOAT:
            found.update(node.outputs)
            if node.name:
                found.add(f"node {node.name}")
    return found


def _is_in(product: Product, view: GraphView, left: set[str]) -> bool:
    """Whether a product is among the float ones: by its name, or by its output or that of a clamp fused into it."""
    if product.form == "codes":
        return False
    if product.node.name and f"node {product.node.name}" in left:
        return True
    value = product.node.output[0]
    while value not in left:
        reader = view.only_consumer(value)
        if reader is None or reader.op_type not in CLAMPS:
            return False
        value = reader.output[0]
    return True


def _finding(product: Product, view: GraphView) -> Finding:
    reason = float_reason(product, view) or "onnxruntime has no fusion for it here"
    option = exclusion(product.node.name) if product.node.name else ""
    return Finding(
        product.name, f"{product.node.op_type} runs in float: {reason}", option, {"op": product.node.op_type}
    )

"""Matrix products: MatMulInteger and QLinearMatMul, B known beforehand or not, capped, and on two threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.bench import ceilings, peers, shapes
from qtool.bench.cases.case import (
    GOPS,
    ONEDNN,
    ORT,
    QTOOL,
    Case,
    Engine,
    allowed_isas,
    capped,
    ceiling,
    engine,
    peer,
)
from qtool.bench.shapes import Shape

Array = npt.NDArray[Any]
Call = Callable[[], Any]

INT32, UINT8 = 6, 2  # TensorProto.DataType
SIGNS = {"u8s8": (np.uint8, np.int8), "u8u8": (np.uint8, np.uint8), "s8s8": (np.int8, np.int8)}
# onnxruntime needs seconds for one of the large signed products
SMALL = tuple(s for s in shapes.MATMUL if shapes.operations(s) < 4e9)
VNNI = tuple(s for s in shapes.MATMUL if s[0] >= 128 and shapes.operations(s) < 1e11)
TWO_THREADS = tuple(s for s in shapes.MATMUL if s[0] >= 128)
Y_SCALE, Y_ZERO, B_SCALE = 900.0, 128, 0.02


def operands(shape: Shape, signs: str) -> tuple[Array, Array]:
    """Random A (M, K) and B (K, N), all codes."""
    rng = np.random.default_rng(0)
    m, n, k = shape
    kinds = SIGNS[signs]
    bounds = [np.iinfo(kind) for kind in kinds]
    a = rng.integers(bounds[0].min, bounds[0].max, (m, k), kinds[0], endpoint=True)
    return a, rng.integers(bounds[1].min, bounds[1].max, (k, n), kinds[1], endpoint=True)


def _zero(array: Array) -> Array:
    return np.array(128 if array.dtype == np.uint8 else 0, array.dtype)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


def _integer(a: Array, b: Any, zeros: tuple[Array, Array], threads: int) -> Call:
    count = 1 if threads == 1 else None
    return lambda: kernels.matmul_integer(a, b, *zeros, num_threads=count)


def _qlinear(a: Array, b: Any, zeros: tuple[Array, Array], threads: int) -> Call:
    one, b_scale, y_scale, y_zero = _scale(1), _scale(B_SCALE), _scale(Y_SCALE), np.array(Y_ZERO, np.uint8)
    ours = (a, one, zeros[0], b, b_scale, zeros[1], y_scale, y_zero)
    count = 1 if threads == 1 else None
    return lambda: kernels.qlinear_matmul(*ours, num_threads=count)


def build(
    shape: Shape, signs: str, threads: int, *, codes: bool, packed: bool, isa: str = "auto", extras: str = ""
) -> list[Engine]:
    """Qtool and onnxruntime on one product.

    Args:
        shape: M, N, K.
        signs: Types of A and B.
        threads: For both.
        codes: QLinearMatMul, whose result has 8 bits; else MatMulInteger.
        packed: Whether B is packed before the call: an initializer of the model, a ``PackedB``.
        isa: Cap for qtool.
        extras: Further engines, any of: onednn, amx, vnni, serial, avx512vnni.
    """
    a, b = operands(shape, signs)
    zeros = (_zero(a), _zero(b))
    product = _qlinear if codes else _integer
    m, n, _ = shape

    def mine(name: str, cap: str, count: int) -> Engine:
        with capped(cap):
            return engine(name, product(a, kernels.pack_b(b) if packed else b, zeros, count), isa=cap, threads=count)

    found = [mine(QTOOL, isa, threads)]
    if codes:
        inputs = [a, _scale(1), zeros[0], b, _scale(B_SCALE), zeros[1], _scale(Y_SCALE), np.array(Y_ZERO, np.uint8)]
        constant = [1, 2, 4, 5, 6, 7, *([3] if packed else [])]
        node = ("QLinearMatMul", inputs, constant, UINT8)
    else:
        node = ("MatMulInteger", [a, b, *zeros], [2, 3, *([1] if packed else [])], INT32)
    op_type, arrays, known, output = node
    call = peers.onnxruntime(op_type, arrays, constant=known, output=output, shape=(m, n), threads=threads)
    found += peer(ORT, call)
    work = shapes.operations(shape)
    if "onednn" in extras:
        # it rounds and scales in its own order: an output may differ by one
        other = peers.onednn_qlinear(a, b, B_SCALE, Y_SCALE, Y_ZERO, threads=threads)
        found += peer(ONEDNN, other, comparable=False)
    if "serial" in extras:
        found.append(mine("one thread", isa, 1))
    if "avx512vnni" in extras and "avx512vnni" in allowed_isas():
        found.append(mine("qtool avx512vnni", "avx512vnni", threads))
    for unit in ("amx", "vnni"):
        if f"{unit} peak" in extras and threads == 1:
            found += ceiling(f"{unit} peak", ceilings.peak("amx" if unit == "amx" else "vnni", work))
    return found


def _case(group: str, shape: Shape, signs: str, *, quick: bool = False, threads: int | None = None, **how: Any) -> Case:
    def engines(count: int) -> list[Engine]:
        return build(shape, signs, count, **how)

    name, work = f"{group}/{shapes.name(shape)}", shapes.operations(shape)
    return Case(name, GOPS, work, engines, quick, how.get("isa", "auto"), threads)


def cases() -> Iterator[Case]:
    """All matrix products."""
    for shape in shapes.MATMUL:
        quick = shape in shapes.QUICK_MATMUL
        extras = "onednn, amx peak"
        yield _case("qlinear_matmul_packed", shape, "u8s8", quick=quick, codes=True, packed=True, extras=extras)
    for shape in shapes.MATMUL:
        quick = shape == shapes.QUICK_MATMUL[1]
        yield _case("matmul_integer_packed", shape, "u8s8", quick=quick, codes=False, packed=True)
        yield _case("matmul_integer", shape, "u8s8", codes=False, packed=False)
        yield _case("qlinear_matmul", shape, "u8s8", codes=True, packed=False)
    for signs in ("u8u8", "s8s8"):
        for shape in SMALL:
            quick = shape == shapes.QUICK_MATMUL[0]
            yield _case(f"matmul_integer_packed_{signs}", shape, signs, quick=quick, codes=False, packed=True)
    for name, packed in (("gemv_packed", True), ("gemv", False)):
        yield _case(f"{name}/matmul_integer", shapes.GEMV, "u8s8", quick=packed, codes=False, packed=packed)
        yield _case(f"{name}/qlinear_matmul", shapes.GEMV, "u8s8", codes=True, packed=packed)
    for shape in VNNI:
        how: dict[str, Any] = {"codes": True, "packed": True, "isa": "avx512vnni", "extras": "vnni peak"}
        yield _case("forced_avx512vnni", shape, "u8s8", quick=shape == shapes.QUICK_MATMUL[1], **how)
    for shape in SMALL:
        how = {"codes": False, "packed": True, "isa": "avx2", "extras": "avx512vnni"}
        yield _case("forced_avx2", shape, "s8s8", **how)
    for shape in TWO_THREADS:
        how = {"codes": True, "packed": True, "extras": "serial"}
        yield _case("two_threads", shape, "u8s8", threads=2, **how)

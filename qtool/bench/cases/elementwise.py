"""QuantizeLinear and DequantizeLinear by granularity, type and size. The unit is traffic: bytes read and written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool import kernels
from qtool.bench import ceilings, peers, shapes
from qtool.bench.cases.case import GBS, ORT, QTOOL, Case, Engine, ceiling, engine, peer
from qtool.dtypes import QDTYPES

Array = npt.NDArray[Any]

FLOAT, INT8 = 1, 3  # TensorProto.DataType
COPY = "copy"
COLUMNS = 1024


@dataclass(frozen=True)
class Kind:
    """A way to quantize: target type, axis of the scale (None: one scale), elements of a block."""

    target: str
    axis: int | None = None
    block: int = 0


KINDS = {
    "quantize_tensor/int8": Kind("int8"),
    "quantize_tensor/uint8": Kind("uint8"),
    "quantize_axis0/int8": Kind("int8", 0),
    "quantize_last_axis/int8": Kind("int8", 1),
    "quantize_block32/int4": Kind("int4", 1, 32),
    "quantize_tensor/float8e4m3fn": Kind("float8e4m3fn"),
}
# onnxruntime needs seconds for one call of the others
LARGE = ("quantize_tensor/int8", "quantize_tensor/uint8", "quantize_axis0/int8")


def matrix(elements: int) -> Array:
    """Normal float32 values in rows of 1024."""
    columns = COLUMNS if elements % COLUMNS == 0 else 1000
    part = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    return np.resize(part, elements).reshape(-1, columns)


def _scales(kind: Kind, shape: tuple[int, ...]) -> Array:
    if kind.axis is None:
        return np.array(0.031, np.float32)
    wanted: tuple[int, ...] = (shape[kind.axis],)
    if kind.block:
        wanted = (shape[0], shape[1] // kind.block)
    return np.random.default_rng(1).uniform(0.02, 0.04, wanted).astype(np.float32)


def quantize(kind: Kind, elements: int, work: float, threads: int, *, copy: bool) -> list[Engine]:
    """Qtool and onnxruntime, and the copy bandwidth where it is the limit."""
    x, target = matrix(elements), QDTYPES[kind.target]
    scale = _scales(kind, x.shape)
    zero = np.zeros(scale.shape, np.uint8).view(target.numpy)
    axis = 1 if kind.axis is None else kind.axis
    how: dict[str, Any] = {"axis": axis, "block_size": kind.block}
    whole = target.bits == 8 and target.format is None
    packed = target.bits < 8  # as onnxruntime writes narrow types
    y = np.empty(target.nbytes(elements), np.uint8) if packed else np.empty(x.shape, target.numpy)

    def call() -> Array:
        return kernels.quantize(x, scale, zero, packed=packed, out=y, num_threads=threads, **how)

    found = [engine(QTOOL, call, comparable=whole)]
    other = peers.onnxruntime(
        "QuantizeLinear",
        [x, scale, zero],
        constant=[1, 2],
        output=target.onnx,
        shape=x.shape,
        threads=threads,
        **{k: v for k, v in how.items() if kind.axis is not None},
    )
    found += peer(ORT, other, comparable=whole)
    return found + (ceiling(COPY, ceilings.copy(elements, work)) if copy else [])


def dequantize(elements: int, threads: int) -> list[Engine]:
    """Qtool and onnxruntime on int8 codes with one scale."""
    codes = np.resize(np.arange(-128, 128, dtype=np.int8), elements).reshape(-1, COLUMNS)
    scale, zero = np.array(0.031, np.float32), np.array(3, np.int8)
    y = np.empty(codes.shape, np.float32)
    call = peers.onnxruntime(
        "DequantizeLinear", [codes, scale, zero], constant=[1, 2], output=FLOAT, shape=codes.shape, threads=threads
    )
    mine = engine(QTOOL, lambda: kernels.dequantize(codes, scale, zero, out=y, num_threads=threads))
    return [mine, *peer(ORT, call)]


def _quantize_case(name: str, kind: Kind, size: str) -> Case:
    elements = shapes.ELEMENTS[size]
    target = QDTYPES[kind.target]
    work = float(4 * elements + target.nbytes(elements))
    copy = name == "quantize_tensor/int8" and elements <= shapes.ELEMENTS["16M"]

    def engines(threads: int) -> list[Engine]:
        return quantize(kind, elements, work, threads, copy=copy)

    return Case(f"{name}/{size}", GBS, work, engines, quick=size == "1M")


def _dequantize_case(size: str) -> Case:
    elements = shapes.ELEMENTS[size]
    return Case(
        f"dequantize_tensor/int8/{size}", GBS, 5.0 * elements, lambda t: dequantize(elements, t), quick=size == "1M"
    )


def cases() -> Iterator[Case]:
    """All elementwise kernels."""
    for name, kind in KINDS.items():
        for size in shapes.ELEMENTS if name in LARGE else ("1M", "16M"):
            yield _quantize_case(name, kind, size)
    for size in ("1M", "16M"):
        yield _dequantize_case(size)

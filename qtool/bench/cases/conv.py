"""QLinearConv on the shapes of ResNet-50, and depthwise ones of mobile networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qtool import kernels
from qtool.bench import peers, shapes
from qtool.bench.cases.case import GOPS, ORT, QTOOL, Case, Engine, engine, peer

UINT8 = 2  # TensorProto.DataType


def build(
    channels: int, outputs: int, side: int, kernel: int, stride: int, threads: int, *, depthwise: bool
) -> list[Engine]:
    """Qtool and onnxruntime on one convolution of uint8 with int8 weights, batch 1, a scale per channel, and a bias."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1, channels, side, side), np.uint8)
    w = rng.integers(-128, 128, (outputs, 1 if depthwise else channels, kernel, kernel), np.int8)
    scales = rng.uniform(0.01, 0.03, outputs).astype(np.float32)
    bias = rng.integers(-1000, 1000, outputs, np.int32)
    y_scale = np.array(3.0 * np.sqrt(w[0].size), np.float32)
    one, middle = np.array(1, np.float32), np.array(128, np.uint8)
    inputs = (x, one, middle, w, scales, np.zeros(outputs, np.int8), y_scale, middle)
    group = channels if depthwise else 1
    packed = kernels.pack_conv_weights(w, group)  # as the peer does with constant weights
    ours = (x, one, middle, packed, scales, np.zeros(outputs, np.int8), y_scale, middle)
    pad = kernel // 2
    attributes: dict[str, Any] = {
        "group": group,
        "pads": [pad] * 4,
        "strides": [stride] * 2,
        "kernel_shape": [kernel] * 2,
    }
    out = -(-side // stride)
    mine = engine(QTOOL, lambda: kernels.qlinear_conv(*ours, bias=bias, num_threads=threads, **attributes))
    call = peers.onnxruntime(
        "QLinearConv",
        [*inputs, bias],
        constant=range(1, 9),
        output=UINT8,
        shape=(1, outputs, out, out),
        threads=threads,
        **attributes,
    )
    return [mine, *peer(ORT, call)]


def _case(group: str, size: tuple[int, int, int], kernel: int, stride: int = 1, *, quick: bool = False) -> Case:
    channels, outputs, side = size
    depthwise = group == "depthwise_conv"

    def engines(threads: int) -> list[Engine]:
        return build(channels, outputs, side, kernel, stride, threads, depthwise=depthwise)

    width = channels if channels == outputs else f"{channels}-{outputs}"
    step = "" if stride == 1 else f"s{stride}"
    name = f"{group}/{kernel}x{kernel}/{width}x{side}x{side}{step}"
    products = kernel * kernel * (1 if depthwise else channels)
    work = 2.0 * outputs * products * (-(-side // stride)) ** 2
    return Case(name, GOPS, work, engines, quick)


def cases() -> Iterator[Case]:
    """All convolutions."""
    for channels, side in shapes.CONV_3X3:
        yield _case("qlinear_conv", (channels, channels, side), 3, quick=side == 28)
    for channels, outputs, side in shapes.CONV_1X1:
        yield _case("qlinear_conv", (channels, outputs, side), 1, quick=side == 14)
    for channels, side, stride in shapes.DEPTHWISE:
        yield _case("depthwise_conv", (channels, channels, side), 3, stride, quick=side == 56)

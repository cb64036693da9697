"""Random graphs of every operator that can be quantized, and some that cannot: what is written is legal and right."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest

from tests.models import FORMATS, build, normal, quantize_and_check

UNARY = ("Relu", "Sigmoid", "Neg", "HardSwish", "LeakyRelu<alpha=0.1>", "Softmax<axis=-1>", "GlobalAveragePool")
POOLS = ("MaxPool<kernel_shape=[2,2], strides=[2,2]>", "AveragePool<kernel_shape=[2,2], strides=[2,2]>")
KINDS = ("conv", "conv", "conv", "depthwise", "unary", "unary", "clip", "join", "join", "constant", "concat", "concat",
         "pool", "transpose", "slice", "split", "pad", "resize", "matmul")  # fmt: skip
LARGEST = 16  # of channels and of sides


class Grower:
    """Grows a graph value by value; each kind of growth reads one or two of the latest values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shapes: dict[str, tuple[int, int, int]] = {"x": (4, 8, 8)}
        self.body: list[str] = []
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, operator: str, shape: tuple[int, int, int], *more: tuple[int, int, int]) -> None:
        names = [f"t{len(self.shapes) + i}" for i in range(1 + len(more))]
        self.body.append(f"{', '.join(names)} = {operator}")
        self.shapes.update(zip(names, (shape, *more), strict=True))

    def constant(self, array: np.ndarray | np.float32) -> str:
        name = f"k{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        return name

    def weight(self, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:]))
        return self.constant(normal(*shape, seed=self.random.randrange(1000), scale=fan_in**-0.5))

    def grow(self) -> None:
        choose = self.random.choice
        a = choose(list(self.shapes)[-4:])
        shape = c, h, w = self.shapes[a]
        kind = choose(KINDS)
        if kind == "conv":
            out, k = choose([4, 8]), choose([1, 3])
            bias = f", {self.constant(normal(out, scale=0.3))}" if choose([True, False]) else ""
            pads = f"pads=[{k // 2},{k // 2},{k // 2},{k // 2}]"
            self.add(f"Conv<{pads}>({a}, {self.weight(out, c, k, k)}{bias})", (out, h, w))
        elif kind == "depthwise":
            self.add(f"Conv<group={c}, pads=[1,1,1,1]>({a}, {self.weight(c, 1, 3, 3)})", shape)
        elif kind == "unary":
            operator = choose(UNARY)
            self.add(f"{operator}({a})", (c, 1, 1) if operator.startswith("Global") else shape)
        elif kind == "clip":
            low, high = self.constant(np.float32(0)), self.constant(np.float32(choose([0.5, 1, 6])))
            self.add(f"Clip({a}, {low}, {high})", shape)
        elif kind == "join":
            b = choose([name for name, other in self.shapes.items() if other == shape])
            self.add(f"{choose(['Add', 'Mul'])}({a}, {b})", shape)
        elif kind == "constant":
            self.add(f"{choose(['Add', 'Mul'])}({a}, {self.constant(normal(1, c, h, w))})", shape)
        elif kind == "concat":
            b = choose([n for n, other in self.shapes.items() if other[1:] == (h, w)])
            if c + self.shapes[b][0] <= LARGEST:
                self.add(f"Concat<axis=1>({a}, {b})", (c + self.shapes[b][0], h, w))
        elif kind == "pool" and min(h, w) >= 2:
            self.add(f"{choose(POOLS)}({a})", (c, h // 2, w // 2))
        elif kind == "transpose":
            self.add(f"Transpose<perm=[0,1,3,2]>({a})", (c, w, h))
        elif kind == "slice" and c >= 2:
            start, end, axis = (self.constant(np.array([v])) for v in (0, c // 2, 1))
            self.add(f"Slice({a}, {start}, {end}, {axis})", (c // 2, h, w))
        elif kind == "split" and c >= 2:
            sizes = self.constant(np.array([c // 2, c - c // 2]))
            self.add(f"Split<axis=1>({a}, {sizes})", (c // 2, h, w), (c - c // 2, h, w))
        elif kind == "pad" and h < LARGEST:
            self.add(f"Pad({a}, {self.constant(np.array([0, 0, 0, 0, 0, 1, 1, 0]))})", (c + 1, h + 1, w))
        elif kind == "resize" and max(h, w) * 2 <= LARGEST:
            scales = self.constant(np.array([1, 1, 2, 2], np.float32))
            self.add(f'Resize<mode="nearest">({a}, , {scales})', (c, 2 * h, 2 * w))
        elif kind == "matmul":
            self.add(f"MatMul({a}, {self.weight(w, 4)})", (c, h, 4))
            if choose([True, False]):
                product = list(self.shapes)[-1]
                self.add(f"Add({product}, {self.constant(normal(4))})", (c, h, 4))

    def model(self, opset: int) -> onnx.ModelProto:
        """A Conv first and last, so that there is something to quantize; one value in between is an output, too."""
        self.add(f"Conv<pads=[1,1,1,1]>(x, {self.weight(4, 4, 3, 3)})", (4, 8, 8))
        for _ in range(self.random.randint(3, 12)):
            self.grow()
        c, h, w = list(self.shapes.values())[-1]
        self.add(f"Conv<pads=[1,1,1,1]>({list(self.shapes)[-1]}, {self.weight(4, c, 3, 3)})", (4, h, w))
        last = list(self.shapes)[-1]
        outputs = dict.fromkeys([self.random.choice(list(self.shapes)[1:]), last])
        typed = ", ".join(f"float[2,{','.join(map(str, self.shapes[name]))}] {name}" for name in outputs)
        text = f"m (float[2,4,8,8] x) => ({typed}) {{ {' '.join(self.body)} }}"
        return build(text, self.arrays, opset=opset, ir_version=10)


OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"per_channel": False, "method": "percentile"},
    {"activations": "int8"},
    {"activations": "int8", "symmetric_activations": True, "method": "mse"},
)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("form", FORMATS)
def test_a_random_graph(seed, form):
    options = dict(OPTIONS[seed % len(OPTIONS)])
    if form == "qdq":
        options["dedicated_qdq"] = seed % 3 == 0
    model = Grower(seed).model(opset=(17, 21)[seed // 4 % 2])
    x = normal(4, 4, 8, 8, seed=seed)
    # codes that differ by one between the two runs of onnxruntime add up over a dozen layers
    checked = quantize_and_check(
        model, {"x": x}, feeds={"x": x[:2]}, format=form, one_code=False, agreement_db=18, **options
    )
    for name in checked.expected:
        assert checked.sqnr(name) >= 14

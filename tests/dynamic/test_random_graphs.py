"""Random graphs of products with odd shapes and additions behind them: legal, and right in every engine."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.dynamic.support import dynamic
from tests.models import build, normal


class Grower:
    """Grows a graph value by value from one input of 1 to 4 dimensions; values are computed along the way."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        shape = [self.random.choice([1, 2, 3, 5]) for _ in range(self.random.randint(0, 3))]
        self.values = {"x": normal(*shape, self.random.choice([1, 4, 8]), seed=seed)}
        self.body: list[str] = []
        self.arrays: dict[str, np.ndarray] = {}

    def constant(self, *shape: int) -> str:
        name = f"k{len(self.arrays)}"
        self.arrays[name] = normal(*shape, seed=self.random.randrange(1000), scale=0.5)
        return name

    def add(self, operator: str, value: np.ndarray) -> None:
        name = f"t{len(self.values)}"
        self.body.append(f"{name} = {operator}")
        self.values[name] = value

    def grow(self) -> None:
        choose = self.random.choice
        a = choose(list(self.values)[-3:])
        x = self.values[a]
        kind = choose(["product", "product", "product", "left", "gemm", "row", "constant", "join", "relu", "transpose"])
        last = x.shape[-1] if x.ndim else 0
        if kind == "product" and last:
            shape = choose([(last, 4), (last, 8), (last, 1), (last,), (2, last, 4), (1, 1, last, 3)])
            w = self.constant(*shape)
            if x.ndim > 2 and len(shape) > 2 and x.shape[-3] not in (1, 2):
                return
            self.add(f"MatMul({a}, {w})", np.matmul(x, self.arrays[w]))
        elif kind == "left" and last and x.ndim < 3:
            w = self.constant(3, x.shape[0])
            self.add(f"MatMul({w}, {a})", np.matmul(self.arrays[w], x))
        elif kind == "gemm" and x.ndim == 2:
            w, b = (
                self.constant(6, last),
                self.constant(*choose([(6,), (1, 6), (1,), (x.shape[0], 6), (x.shape[0], 1)])),
            )
            self.add(f"Gemm<transB=1>({a}, {w}, {b})", x @ self.arrays[w].T + self.arrays[b])
        elif kind == "row" and last:
            b = self.constant(*choose([(last,), (1, last), (1, 1, last), (1, 1, 1, 1, last)]))
            self.add(f"Add({a}, {b})" if choose([True, False]) else f"Add({b}, {a})", x + self.arrays[b])
        elif kind == "constant" and x.ndim < 4:
            b = self.constant(*choose([(), (1,), (3,), (2, 1), x.shape]))
            try:
                self.add(f"Add({a}, {b})", x + self.arrays[b])
            except ValueError:  # shapes that do not go together
                del self.arrays[b]
        elif kind == "join":
            b = choose(list(self.values))
            try:
                self.add(f"Add({a}, {b})", x + self.values[b])
            except ValueError:
                return
        elif kind == "relu":
            self.add(f"Relu({a})", np.maximum(x, 0))
        elif kind == "transpose" and x.ndim > 1:
            self.add(f"Transpose({a})", x.T)


def check(seed: int) -> None:
    grower = Grower(seed)
    for _ in range(8):
        grower.grow()
    if len(grower.values) < 2:
        return
    *_, last = grower.values
    middle = grower.random.choice(list(grower.values)[1:])
    outputs = list(dict.fromkeys((last, middle)))

    def declared(name: str) -> str:
        shape = grower.values[name].shape
        known = grower.random.choice([True, False])
        dims = ",".join(str(d) if known else f"{name}_{i}" for i, d in enumerate(shape))
        return f"float[{dims}] {name}" if shape else f"float {name}"

    body = " ".join(f"[n{i}] {line}" for i, line in enumerate(grower.body))
    text = f"m ({declared('x')}) => ({', '.join(declared(o) for o in outputs)}) {{ {body} }}"
    done = dynamic(build(text, grower.arrays), {"x": grower.values["x"]}, agreement_db=-np.inf, allow_empty=True)
    for name in outputs:
        y = done.expected[name]
        for other in (done.got[name], done.fast[name]):
            assert np.abs(other - y).max(initial=0) <= 0.1 * np.abs(y).max(initial=0) + 0.05


@pytest.mark.parametrize("seed", range(60))
def test_random_graph(seed):
    check(seed)

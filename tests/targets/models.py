"""Two small models of the kinds that targets treat differently: Convs with skip connections, and attention."""

from __future__ import annotations

import numpy as np
import onnx

from tests.models import build, normal

CONV_NET = """g (float[N,3,12,12] x) => (float[N,5] y) {
    c1 = Conv <pads=[1,1,1,1]> (x, w1, b1)
    r1 = Relu (c1)
    c2 = Conv <pads=[1,1,1,1]> (r1, w2, b2)
    s = Add (c2, r1)
    r2 = Relu (s)
    p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r2)
    c3 = Conv (p, w3, b3)
    g = GlobalAveragePool (c3)
    f = Flatten (g)
    y = Gemm (f, w4, b4)
}"""

BLOCK = """g (float[N,6,32] x) => (float[N,6,32] y) {
    h = LayerNormalization <axis=-1> (x, gamma, beta)
    q = MatMul (h, wq)
    k = MatMul (h, wk)
    v = MatMul (h, wv)
    kt = Transpose <perm=[0,2,1]> (k)
    s = MatMul (q, kt)
    a = Softmax <axis=-1> (s)
    c = MatMul (a, v)
    o = MatMul (c, wo)
    ob = Add (o, bo)
    r = Add (ob, x)
    m = MatMul (r, w1)
    mb = Add (m, b1)
    e = Relu (mb)
    n = MatMul (e, w2)
    nb = Add (n, b2)
    y = Add (nb, r)
}"""


def conv_net() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model and 16 samples."""
    arrays = {
        "w1": normal(8, 3, 3, 3, seed=1, scale=0.3),
        "b1": normal(8, seed=2),
        "w2": normal(8, 8, 3, 3, seed=3, scale=0.2),
        "b2": normal(8, seed=4),
        "w3": normal(40, 8, 1, 1, seed=5, scale=0.3),
        "b3": normal(40, seed=6),
        "w4": normal(40, 5, seed=7, scale=0.3),
        "b4": normal(5, seed=8),
    }
    return build(CONV_NET, arrays), {"x": normal(16, 3, 12, 12, seed=9)}


def block() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model and 16 samples."""
    weights = {name: normal(32, 32, seed=i, scale=0.2) for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    arrays = weights | {
        "gamma": normal(32, seed=5, scale=0.1) + np.float32(1),
        "beta": normal(32, seed=6, scale=0.1),
        "bo": normal(32, seed=7),
        "w1": normal(32, 48, seed=8, scale=0.2),
        "b1": normal(48, seed=9),
        "w2": normal(48, 32, seed=10, scale=0.2),
        "b2": normal(32, seed=11),
    }
    return build(BLOCK, arrays), {"x": normal(16, 6, 32, seed=12)}

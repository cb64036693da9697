"""Embedding tables of dynamic mode."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dynamic.support import dynamic
from tests.models import build, normal

ROWS, WIDTH = 4096, 64
TEXT = "m (int64[A,B] i) => (float[A,B,8] y) { [words] h = Gather(table, i) y = MatMul(h, w) }"
IDS = np.array([[0, 5, 4095], [-1, 7, 7]])


def table(rows: int = ROWS) -> np.ndarray:
    """Rows whose magnitudes differ by a factor of a thousand."""
    return normal(rows, WIDTH) * np.geomspace(0.001, 1, rows, dtype=np.float32)[:, None]


def test_rows_have_scales_of_their_own():
    text = TEXT.replace("y) {", "y, float[A,B,64] h) {")
    done = dynamic(build(text, {"table": table(), "w": normal(WIDTH, 8)}), {"i": IDS})
    assert done.quantized() == ["words", next(d.node for d in done.result.plan.decisions if d.op_type == "MatMul")]
    scale = (np.abs(table()).max(axis=1).astype(np.float64) / 127).astype(np.float32)[:, None]
    np.testing.assert_array_equal(done.got["h"], (np.rint(table() / scale) * scale)[IDS].astype(np.float32))
    assert done.result.bytes_after < 0.27 * done.result.bytes_before
    assert done.ops["DequantizeLinear"] == 0


@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_one_scale(weights):
    text = TEXT.replace("y) {", "y, float[A,B,64] h) {")
    arrays = {"table": table(), "w": normal(WIDTH, 8)}
    done = dynamic(build(text, arrays), {"i": IDS}, per_channel=False, weights=weights)
    assert done.ops["DequantizeLinear"] == 1
    scale = np.float32(np.abs(table()).max().astype(np.float64) / 127)
    assert np.abs(done.got["h"] - table()[IDS]).max() <= scale / 2 * 1.001


def test_a_small_table_stays_float():
    done = dynamic(build(TEXT, {"table": table(512), "w": normal(WIDTH, 8)}), {"i": np.array([[0, 511]])})
    assert done.reason("words") == "it does not read rows of a large table"


def test_a_mask_stays_float():
    """Rows of 0 and -3e38, as they are added to scores."""
    text = """m (int64[B] i, float[B,64] x) => (float[B,64] y) {
        [words] h = Gather(table, i) z = MatMul(x, w) y = Add(z, h)
    }"""
    mask = np.where(table() < 0, np.float32(-3e38), np.float32(0))
    feeds = {"i": np.array([3, 5]), "x": normal(2, WIDTH)}
    done = dynamic(build(text, {"table": mask, "w": normal(WIDTH, WIDTH)}), feeds)
    assert done.reason("words") == "its table is a mask (infinite or beyond 1e30), which no range can hold"


def test_a_table_that_is_also_read_otherwise_stays_float():
    text = """m (int64[B] i) => (float[B,64] y, float[1,64] z) {
        [words] h = Gather(table, i) y = MatMul(h, w) z = ReduceMean<axes=[0]>(table)
    }"""
    model = build(text, {"table": table(), "w": normal(WIDTH, WIDTH)}, opset=13)
    done = dynamic(model, {"i": np.array([3, 5])})
    assert done.reason("words") == "other operators read its table in float"

"""Cutting a weight into columns and putting scales back in shape, against loops over elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.granularity import PerAxis, PerBlock, PerTensor
from qtool.weights import blocks
from qtool.weights.blocks import cut


@st.composite
def cuts(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))
    kind = draw(st.sampled_from(("tensor", "axis", "block")))
    if kind == "tensor":
        return shape, PerTensor()
    return shape, PerAxis(axis) if kind == "axis" else PerBlock(axis, draw(st.integers(1, 8)))


def owner(index: tuple[int, ...], granularity) -> tuple[int, ...]:
    """Index of the scale of an element."""
    if isinstance(granularity, PerAxis):
        return (index[granularity.axis],)
    if isinstance(granularity, PerBlock):
        return tuple(i // granularity.size if a == granularity.axis else i for a, i in enumerate(index))
    return ()


@given(cuts())
@settings(max_examples=60)
def test_each_scale_sees_its_elements(case):
    shape, granularity = case
    array = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    cut_blocks = cut(array, granularity)
    sums = cut_blocks.scales(cut_blocks.columns.sum(axis=0))
    assert sums.shape == granularity.scale_shape(shape)
    expected = np.zeros(sums.shape, np.float32)
    for index in itertools.product(*map(range, shape)):
        expected[owner(index, granularity)] += array[index]
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 15])
def test_chunks_cover_every_column_once(size, monkeypatch):
    monkeypatch.setattr(blocks, "_CHUNK", size)
    array = np.arange(33 * 10, dtype=np.float32).reshape(33, 10)
    whole = cut(array, PerBlock(0, 8))
    parts = [whole.part(part) for part in whole.parts()]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole.columns)
    assert all(part.flags.c_contiguous and part.dtype == np.float32 for part in parts)

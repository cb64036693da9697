import numpy as np
import pytest

from qtool.errors import ModelError
from qtool.runtime import blocked
from qtool.runtime.blocked import block_size, in_blocks, out_of_blocks


def test_the_blocks_of_this_processor_are_known_ones():
    assert block_size() in (None, 4, 8, 16, 32)


def test_out_of_blocks_is_the_inverse_of_the_layout(monkeypatch):
    monkeypatch.setattr(blocked, "block_size", lambda: 4)
    x = np.arange(2 * 8 * 3 * 5).reshape(2, 8, 3, 5)  # 6 channels and 2 that fill up, as memory has them
    parts = in_blocks(x, 6)
    assert parts.shape == (2, 2, 3, 5, 4)
    plain = out_of_blocks(parts, 6)
    assert plain.shape == (2, 6, 3, 5)
    for n, channel, row, column in np.ndindex(plain.shape):
        at = (((n * 2 + channel // 4) * 3 + row) * 5 + column) * 4 + channel % 4
        assert plain[n, channel, row, column] == x.reshape(-1)[at]


@pytest.mark.parametrize("channels", [4, 9])
def test_an_array_of_other_channels_is_no_array_in_blocks(monkeypatch, channels):
    monkeypatch.setattr(blocked, "block_size", lambda: 4)
    with pytest.raises(ModelError, match=rf"\[1, 8, 2, 2\]; expected {channels} channels in blocks of 4"):
        in_blocks(np.zeros((1, 8, 2, 2), np.float32), channels)

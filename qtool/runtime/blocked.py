"""Arrays whose channels lie in blocks: onnxruntime's own layout for convolutions (NCHWc).

An array of C channels is kept as (N, C / b, H, W, b), the channels filled up to a multiple of b, which depends on the
processor. onnxruntime does not tell b, and gives such a value the shape (N, C, H, W); so b is found by looking at what
a small convolution makes.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qtool.errors import ModelError
from qtool.runtime.optimized import write_optimized
from qtool.runtime.ort import _FATAL_ONLY

if TYPE_CHECKING:
    import onnx

_DOMAIN = "com.microsoft.nchwc"
_BLOCKS = (4, 8, 16, 32)
_CHANNELS, _SIDE = 96, 3  # a multiple of them all


class BlockedValue(NamedTuple):
    """A value of an optimised graph that is also there in blocks.

    Attributes:
        name: Of the value in blocks.
        channels: How many channels it has; the array may have more.
    """

    name: str
    channels: int


def blocked_values(graph: onnx.GraphProto) -> dict[str, BlockedValue]:
    """The values of an optimised graph that are only copied out of blocks to be handed out, by name."""
    read = {name for node in graph.node for name in node.input}
    found = {}
    for node in graph.node:
        if (node.domain, node.op_type) == (_DOMAIN, "ReorderOutput") and node.output[0] not in read:
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            if not attributes.get("channels_last", 0):
                found[node.output[0]] = BlockedValue(node.input[0], attributes["channels"])
    return found


def in_blocks(array: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """What onnxruntime hands out for a value in blocks, shape (N, C, ..), as what it is, (N, C / b, .., b).

    Raises:
        ModelError: If it does not have the channels that it should have.
    """
    block = block_size()
    filled = 0 if block is None else -(-channels // block) * block
    if block is None or array.ndim < 3 or array.shape[1] != filled:
        raise ModelError(
            f"onnxruntime hands out {list(array.shape)}; expected {channels} channels in blocks of {block}."
        )
    return array.reshape(array.shape[0], filled // block, *array.shape[2:], block)


def out_of_blocks(array: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """An array (N, C / b, .., b) as (N, channels, ..)."""
    plain = np.moveaxis(array, -1, 2)
    plain = plain.reshape(plain.shape[0], plain.shape[1] * plain.shape[2], *plain.shape[3:])
    return np.ascontiguousarray(plain[:, :channels])


@cache
def block_size() -> int | None:
    """Channels of a block on this processor; None where onnxruntime has no such layout."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    weights = np.arange(1, _CHANNELS + 1, dtype=np.float32).reshape(_CHANNELS, 1, 1, 1)
    x = np.arange(1, _SIDE * _SIDE + 1, dtype=np.float32).reshape(1, 1, _SIDE, _SIDE)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, _CHANNELS, _SIDE, _SIDE))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(prefix="qtool-") as folder:
        proto = write_optimized(model, Path(folder))
    value = blocked_values(proto.graph).get("y")
    if value is None:
        return None
    del proto.graph.output[:]
    proto.graph.output.add().name = value.name
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    expected = weights.reshape(1, _CHANNELS, 1, 1) * x  # products of small integers: exact
    for block in _BLOCKS:
        shape = (1, _CHANNELS // block, _SIDE, _SIDE, block)
        if found.size == expected.size and np.array_equal(out_of_blocks(found.reshape(shape), _CHANNELS), expected):
            return block
    return None

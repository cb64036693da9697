"""Every mover at every opset at which something about it, or about what is around it, changed."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.plan.ops.movers import FIRST_OPSET_ON_CODES, MoverHandler
from qtool.runtime.capability import highest_quantizing_opset
from tests.models import build, normal, quantize_and_check

I64 = np.int64
HIGHEST = highest_quantizing_opset(27)
FIRST_OPSET = {"GatherElements": 11, "GatherND": 11}
OPSETS = (10, 11, 12, 13, 18, HIGHEST)


def arguments(op: str, opset: int) -> tuple[str, dict[str, np.ndarray], int]:
    """Call on h of shape [N,16,4,4], its constants, and the number of channels of the result (axis 1 of rank 4)."""
    axes_are_inputs = opset >= 13
    match op:
        case "MaxPool":
            return "MaxPool<kernel_shape=[2,2]>(h)", {}, 16
        case "Reshape":
            return "Reshape(h, s)", {"s": I64([0, 32, 2, 4])}, 32
        case "Transpose":
            return "Transpose<perm=[0,2,1,3]>(h)", {}, 4
        case "Squeeze":
            up = "Unsqueeze(h, a)" if axes_are_inputs else "Unsqueeze<axes=[1]>(h)"
            down = "Squeeze(u, a)" if axes_are_inputs else "Squeeze<axes=[1]>(u)"
            return f"{up} [m] q = {down}", {"a": I64([1])} if axes_are_inputs else {}, 16
        case "Unsqueeze":
            up = "Unsqueeze(h, a)" if axes_are_inputs else "Unsqueeze<axes=[1]>(h)"
            return (
                f"{up} q = Reshape(m, s)",
                {"s": I64([0, 16, 4, 4])} | ({"a": I64([1])} if axes_are_inputs else {}),
                16,
            )
        case "Flatten":
            return "Flatten(h) q = Reshape(m, s)", {"s": I64([0, 16, 4, 4])}, 16
        case "Slice":
            return "Slice(h, b, e, a)", {"b": I64([2]), "e": I64([10]), "a": I64([1])}, 8
        case "Split":
            return ("Split<axis=1,num_outputs=2>(h)" if opset >= 18 else "Split<axis=1>(h)"), {}, 8
        case "Gather":
            return "Gather<axis=1>(h, i)", {"i": I64([3, 1, 2])}, 3
        case "Expand":
            return "Expand(h, s)", {"s": I64([1, 16, 4, 4])}, 16
        case "Tile":
            return "Tile(h, r)", {"r": I64([1, 1, 2, 1])}, 16
        case "DepthToSpace":
            return "DepthToSpace<blocksize=2>(h)", {}, 4
        case "SpaceToDepth":
            return "SpaceToDepth<blocksize=2>(h)", {}, 64
        case "Resize":
            call = "Resize(h, r)" if opset < 11 else "Resize(h, roi, r)"
            arrays = {"r": np.float32([1, 1, 2, 2])}
            return call, arrays if opset < 11 else arrays | {"roi": np.zeros(0, np.float32)}, 16
        case "ReduceMax":
            call = "ReduceMax(h, a)" if opset >= 18 else "ReduceMax<axes=[2]>(h)"
            return call, {"a": I64([2])} if opset >= 18 else {}, 16
        case "Pad":
            pads = [0, 1, 0, 0, 0, 1, 0, 0]  # of channels: the others become part of the Conv
            return ("Pad(h, p)", {"p": I64(pads)}, 18) if opset >= 11 else (f"Pad<pads={pads}>(h)", {}, 18)
        case "ReduceMin":
            call = "ReduceMin(h, a)" if opset >= 18 else "ReduceMin<axes=[2]>(h)"
            return call, {"a": I64([2])} if opset >= 18 else {}, 16
        case "GatherElements":
            indices = np.arange(16 * 2 * 4).reshape(1, 16, 2, 4) % 4
            return "GatherElements<axis=2>(h, i)", {"i": I64(indices)}, 16
        case "GatherND":
            return "GatherND(h, i)", {"i": I64([[[0, 3], [0, 1], [0, 2]]])}, 3
        case "ReverseSequence":
            return "ReverseSequence<batch_axis=1, time_axis=0>(h, i)", {"i": np.ones(16, np.int64)}, 16
        case "Compress":
            return "Compress<axis=1>(h, c)", {"c": np.array([True, False, True])}, 2
        case "Identity":
            return "Identity(h)", {}, 16
    raise AssertionError(f"no model for {op}")


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op", MoverHandler.op_types)
def test_between_convs(op, opset):
    """uint8 and int8; whichever form it gets, the file loads, runs and agrees."""
    if opset < FIRST_OPSET.get(op, 1):
        pytest.skip("the operator is younger")
    call, arrays, channels = arguments(op, opset)
    first = {"Squeeze": "u = ", "Unsqueeze": "[m] m = ", "Flatten": "[m] m = ", "Split": "[m] q, q2 = "}
    model = build(
        f"""m (float[N,16,4,4] x) => (float[N,8,e,f] y)
        {{ h = Conv(x, w) {first.get(op, "[m] q = ")}{call} y = Conv(q, v) }}""",
        {"w": normal(16, 16, 1, 1), "v": normal(8, channels, 1, 1, seed=1), **arrays},
        opset=opset,
        ir_version=5 if opset < 13 else 9,
    )
    for form, activations in (("qlinear", "uint8"), ("qlinear", "int8"), ("qdq", "uint8")):
        checked = quantize_and_check(
            model, {"x": normal(2, 16, 4, 4)}, format=form, activations=activations, per_channel=opset >= 13
        )
        assert next(o.version for o in checked.model.opset_import if o.domain == "") == opset
        assert checked.sqnr() > 25
        moved = opset >= FIRST_OPSET_ON_CODES.get(op, 11 if op == "Pad" else 10) and op != "Identity"
        assert ("m" in checked.quantized()) == moved

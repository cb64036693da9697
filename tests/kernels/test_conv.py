"""ConvInteger and QLinearConv: kernels == reference == nested loops == onnxruntime, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool import kernels
from qtool.errors import KernelError
from tests.kernels.oracle import PAIRS, f32, random_codes, run_ort
from tests.kernels.remembered import reference

pytestmark = pytest.mark.usefixtures("isa")

pair = pytest.mark.parametrize(("tx", "tw"), PAIRS, ids=lambda t: t.__name__)


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


# ------------------------------------------------------------------------------------------------ the reference itself


@pair
def test_reference_matches_nested_loops(tx: type, tw: type) -> None:
    rng = np.random.default_rng(0)
    x, w = random_codes(rng, tx, (2, 4, 5, 6)), random_codes(rng, tw, (6, 2, 3, 2))
    zx, zw = random_codes(rng, tx, ()), random_codes(rng, tw, (6,))
    strides, dilations, (top, left, bottom, right), group = (2, 1), (1, 2), (1, 0, 2, 1), 2
    height = (5 + top + bottom - 3) // 2 + 1
    width = (6 + left + right - 3) // 1 + 1
    expected = np.zeros((2, 6, height, width), np.int32)
    for n, m, i, j in np.ndindex(expected.shape):
        for c, u, v in np.ndindex(2, 3, 2):
            y0, x0 = i * strides[0] - top + u * dilations[0], j * strides[1] - left + v * dilations[1]
            if 0 <= y0 < 5 and 0 <= x0 < 6:  # outside: zero point less zero point
                sample = int(x[n, m // 3 * 2 + c, y0, x0]) - int(zx)
                expected[n, m, i, j] += sample * (int(w[m, c, u, v]) - int(zw[m]))
    attributes = {"group": group, "strides": strides, "dilations": dilations, "pads": (top, left, bottom, right)}
    assert_same(reference.conv_integer(x, w, zx, zw, **attributes), expected)
    assert_same(kernels.conv_integer(x, w, zx, zw, **attributes), expected)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "auto_pad", "pads", "out"),
    [
        (5, 3, 1, 1, "VALID", (0, 0), 3),
        (5, 3, 2, 1, "SAME_UPPER", (1, 1), 3),
        (6, 3, 2, 1, "SAME_UPPER", (0, 1), 3),
        (6, 3, 2, 1, "SAME_LOWER", (1, 0), 3),
        (5, 2, 1, 1, "SAME_UPPER", (0, 1), 5),
        (5, 2, 1, 1, "SAME_LOWER", (1, 0), 5),
        (7, 3, 1, 2, "SAME_UPPER", (2, 2), 7),
        (4, 1, 3, 1, "SAME_UPPER", (0, 0), 2),
        (3, 3, 1, 1, "NOTSET", (0, 0), 1),
    ],
)
def test_auto_pad(
    size: int, kernel: int, stride: int, dilation: int, auto_pad: str, pads: tuple[int, int], out: int
) -> None:
    g = reference.conv_geometry((1, 1, size), (1, 1, kernel), strides=[stride], dilations=[dilation], auto_pad=auto_pad)
    assert (g.pads_begin + g.pads_end, g.output) == (pads, (out,))


@pytest.mark.parametrize("module", [kernels, reference], ids=["kernels", "reference"])
@pytest.mark.parametrize("channels", [1, 2], ids=["direct", "gemm"])
def test_padding_contributes_exactly_nothing(module: Any, channels: int) -> None:
    x = np.full((1, channels, 3, 3), 5, np.uint8)
    w = np.full((1, channels, 3, 3), 100, np.int8)
    zero = module.conv_integer(x, w, np.uint8(5), np.int8(7), pads=[1, 1, 1, 1])
    assert_same(zero, np.zeros((1, 1, 3, 3), np.int32))
    y = module.conv_integer(x, w, np.uint8(4), np.int8(0), pads=[1, 1, 1, 1])
    assert_same(y[0, 0], 100 * channels * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]], np.int32))


@pytest.mark.parametrize("channels", [1, 2], ids=["direct", "gemm"])
def test_the_bias_wraps_with_the_accumulator(channels: int) -> None:
    x, w = np.full((1, channels, 1), 255, np.uint8), np.full((1, channels, 1), 127, np.int8)
    bias = np.array([2**31 - 1], np.int32)
    args = (x, f32(1), np.uint8(0), w, f32(1), np.int8(0), f32(1e9), np.int8(0), bias)
    for module in (kernels, reference):
        assert module.qlinear_conv(*args).item() == -2


# ------------------------------------------------------------------------------------------------ kernels == reference


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Operands and attributes of convolutions of 1 to 3 axes, depthwise and not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tx, tw = draw(st.sampled_from(PAIRS))
    rank, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    per_in, per_out = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2, 3, 9]))
    kernel = tuple(draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank)))
    dilations = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    size = tuple((k - 1) * d + 1 + draw(st.integers(0, 8)) for k, d in zip(kernel, dilations, strict=True))
    attributes: dict[str, Any] = {
        "group": group,
        "strides": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
        "dilations": dilations,
        "kernel_shape": list(kernel),
        "auto_pad": draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])),
    }
    if attributes["auto_pad"] == "NOTSET":
        attributes["pads"] = draw(st.lists(st.integers(0, 6), min_size=2 * rank, max_size=2 * rank))
    channels = group * per_out
    of_w = draw(st.sampled_from([(), (1,), (channels,)]))
    x = random_codes(rng, tx, (draw(st.integers(0, 2)), group * per_in, *size))
    w = random_codes(rng, tw, (channels, per_in, *kernel))
    if draw(st.booleans()):
        x, w = np.asfortranarray(x), np.asfortranarray(w)
    x.flags.writeable = w.flags.writeable = draw(st.booleans())
    operands = {
        "x": x,
        "x_scale": f32(rng.random() * 0.1 + 1e-3),
        "x_zero_point": random_codes(rng, tx, ()),
        "w": w,
        "w_scale": f32(rng.random(of_w) * 0.1 + 1e-3),
        "w_zero_point": random_codes(rng, tw, of_w),
        "y_scale": f32(draw(st.sampled_from([0.01, 1.0, 100.0]))),
        "y_zero_point": random_codes(rng, draw(st.sampled_from([np.uint8, np.int8])), ()),
        "bias": draw(st.sampled_from([None, rng.integers(-50_000, 50_000, channels, dtype=np.int32)])),
    }
    return operands, attributes


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.integers(1, 4))
def test_conv_integer_property(case: tuple[dict[str, Any], dict[str, Any]], threads: int) -> None:
    p, attributes = case
    args = (p["x"], p["w"], p["x_zero_point"], p["w_zero_point"])
    actual = kernels.conv_integer(*args, num_threads=threads, **attributes)
    assert_same(actual, reference.conv_integer(*args, **attributes))


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.integers(1, 4), st.sampled_from(["multiplier", "literal"]))
def test_qlinear_conv_property(case: tuple[dict[str, Any], dict[str, Any]], threads: int, form: str) -> None:
    operands, attributes = case
    actual = kernels.qlinear_conv(**operands, form=form, num_threads=threads, **attributes)
    assert_same(actual, reference.qlinear_conv(**operands, form=form, **attributes))


@pytest.mark.parametrize("channels", [1, 2], ids=["direct", "gemm"])
def test_every_border_of_small_images(channels: int) -> None:
    rng = np.random.default_rng(5)
    for size, kernel, stride, dilation, begin, end in itertools.product(
        range(1, 6), range(1, 4), (1, 2), (1, 2), (0, 1, 3), (0, 2)
    ):
        if size + begin + end < (kernel - 1) * dilation + 1:
            continue
        attributes: dict[str, Any] = {
            "group": 2,
            "strides": [stride, 1],
            "dilations": [dilation, 1],
            "pads": [begin, 1, end, 0],
        }
        x, w = (
            random_codes(rng, np.uint8, (1, 2 * channels, size, 4)),
            random_codes(rng, np.int8, (2, channels, kernel, 2)),
        )
        for swap in (False, True):  # the long axis as height, then as width
            if swap:
                x, w = x.swapaxes(2, 3), w.swapaxes(2, 3)
                attributes = {
                    k: v if k == "group" else [v[i ^ 1] for i in range(len(v))] for k, v in attributes.items()
                }
            expected = reference.conv_integer(x, w, np.uint8(77), np.int8(-5), **attributes)
            assert_same(kernels.conv_integer(x, w, np.uint8(77), np.int8(-5), **attributes), expected)


def test_many_channels_and_positions() -> None:
    rng = np.random.default_rng(1)
    x, w = random_codes(rng, np.uint8, (2, 130, 13, 11)), random_codes(rng, np.int8, (140, 130, 3, 3))
    expected = reference.conv_integer(x, w, np.uint8(9), pads=[1, 1, 1, 1])
    for threads in (1, 2, 4):
        assert_same(kernels.conv_integer(x, w, np.uint8(9), pads=[1, 1, 1, 1], num_threads=threads), expected)


# ------------------------------------------------------------------------------ edges of the kernels and their blocking


def qlinear_operands(rng: np.random.Generator, tx: type, tw: type, x: tuple[int, ...], w: tuple[int, ...]) -> list[Any]:
    """Random operands of QLinearConv with per-channel scales, zero points and bias, codes over the whole range."""
    k = int(np.prod(w[1:]))
    return [
        random_codes(rng, tx, x),
        f32(0.02),
        random_codes(rng, tx, ()),
        random_codes(rng, tw, w),
        f32(rng.random(w[0]) * 0.01 + 0.001),
        random_codes(rng, tw, (w[0],)),
        f32(0.006 * k**0.5),
        random_codes(rng, tx, ()),
        rng.integers(-20_000, 20_000, w[0], dtype=np.int32),
    ]


def assert_matches_reference(args: list[Any], threads: int = 1, form: str = "multiplier", **attributes: Any) -> None:
    x, _, zx, w, _, zw = args[:6]
    assert_same(
        kernels.conv_integer(x, w, zx, zw, num_threads=threads, **attributes),
        reference.conv_integer(x, w, zx, zw, **attributes),
    )
    assert_same(
        kernels.qlinear_conv(*args, form=form, num_threads=threads, **attributes),
        reference.qlinear_conv(*args, form=form, **attributes),
    )


WIDTHS = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129]


@pair
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3], ids=["direct", "gemm"])
def test_lines_around_the_width_of_a_vector(tx: type, tw: type, stride: int, channels: int) -> None:
    rng = np.random.default_rng(6)
    for n, width in enumerate(WIDTHS):
        taps = (1, 2, 3, 4, 5, 7, 8, 9)[n % 8]
        size = (width - 1) * stride + taps  # so that the output is `width` wide
        args = qlinear_operands(rng, tx, tw, (1, 2 * channels, 5, size), (6, channels, 3, taps))
        assert_matches_reference(args, form=("multiplier", "literal")[n % 2], group=2, strides=[1 + n % 2, stride])
        pads = [n % 3, taps // 2, (n + 1) % 3, (taps - 1) // 2]
        assert_matches_reference(args, group=2, strides=[1, stride], pads=pads)


@pytest.mark.parametrize("kernel", [(3, 3), (5, 5), (1, 5), (7, 2)], ids=str)
@pytest.mark.parametrize("multiplier", [1, 2, 3])
def test_depthwise_kernels(kernel: tuple[int, int], multiplier: int) -> None:
    rng = np.random.default_rng(7)
    for stride, dilation, pads in itertools.product((1, 2), (1, 2, 3), ([0, 0, 0, 0], [2, 1, 1, 2], [4, 4, 4, 4])):
        args = qlinear_operands(rng, np.uint8, np.int8, (2, 3, 23, 21), (3 * multiplier, 1, *kernel))
        attributes = {"group": 3, "strides": [stride, stride], "dilations": [1, dilation], "pads": pads}
        assert_matches_reference(args, **attributes)
        args[5] = np.zeros_like(args[5])  # symmetric weights have a path of their own
        assert_matches_reference(args, threads=2, **attributes)


@pytest.mark.parametrize("outputs", [1, 3, 4, 5, 11, 12, 13, 16, 17, 31, 32, 33, 64, 65])
def test_channels_around_a_panel(outputs: int) -> None:
    rng = np.random.default_rng(8)
    for channels, kernel in ((2, 1), (63, 1), (64, 1), (65, 1), (7, 3)):
        args = qlinear_operands(rng, np.uint8, np.int8, (1, channels, 6, 11), (outputs, channels, kernel, kernel))
        assert_matches_reference(args, pads=[kernel // 2] * 4)
        args[5] = np.full_like(args[5], 3)  # one zero point for all channels has a path of its own
        assert_matches_reference(args, threads=2, pads=[kernel // 2] * 4)


@pair
@pytest.mark.parametrize("channels", [1, 40], ids=["direct", "gemm"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_extreme_codes(tx: type, tw: type, channels: int, kernel: int) -> None:
    lx, hx, lw, hw = np.iinfo(tx).min, np.iinfo(tx).max, np.iinfo(tw).min, np.iinfo(tw).max
    rng = np.random.default_rng(9)
    for x, zx, w, zw in itertools.product((lx, hx), (lx, hx), (lw, hw), (lw, hw)):
        args = qlinear_operands(rng, tx, tw, (1, channels, 6, 34), (2, channels, kernel, kernel))
        args[0], args[2] = np.full_like(args[0], x), tx(zx)
        args[3], args[5] = np.full_like(args[3], w), np.full_like(args[5], zw)
        assert_matches_reference(args, pads=[1] * 4)


@pytest.mark.parametrize("channels", [1, 40], ids=["direct", "gemm"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("form", ["multiplier", "literal"])
def test_quotients_beyond_every_range(channels: int, dtype: type, form: str) -> None:
    rng = np.random.default_rng(10)
    args = qlinear_operands(rng, dtype, np.int8, (1, channels, 6, 40), (2, channels, 3, 3))
    args[0][..., :20] = args[2]  # sums of 0, which become NaN if the scale is infinite
    args[8][:] = 0
    for y_scale, w_scale in ((1e-9, 1.0), (1e-38, 1.0), (1e-45, 1e30), (1e38, 1e-30), (3.4e38, 1e-45)):
        args[4], args[6] = f32([w_scale, w_scale]), f32(y_scale)
        with np.errstate(all="ignore"):
            assert_matches_reference(args, form=form)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 9000), (3, 1, 5), {"group": 3, "pads": [2, 1]}),
        ((1, 2, 9000), (4, 1, 4), {"group": 2, "strides": [2]}),
        ((2, 2, 150, 260), (2, 1, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((1, 2, 300, 130), (2, 1, 5, 5), {"group": 2, "pads": [2, 1, 0, 3], "strides": [2, 2]}),
        ((1, 2, 7, 30, 41), (2, 1, 3, 3, 3), {"group": 2, "pads": [1] * 6, "strides": [2, 1, 2]}),
        ((1, 64, 20_000), (5, 64, 3), {"pads": [1, 1]}),
        ((1, 48, 150, 130), (3, 48, 3, 3), {"pads": [1, 2, 0, 1], "dilations": [2, 1]}),
        ((1, 40, 170, 160), (3, 40, 2, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((1, 40, 170, 160), (3, 40, 1, 1), {"strides": [2, 3]}),
        ((2, 5, 9, 20, 21), (7, 5, 3, 2, 3), {"pads": [1] * 6, "strides": [1, 2, 1], "dilations": [2, 1, 1]}),
        ((1, 8, 40, 30), (6, 4, 2, 3), {"group": 2}),
        ((3, 16, 7, 7), (40, 16, 1, 1), {}),
    ],
    ids=str,
)
def test_bands(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], threads: int) -> None:
    args = qlinear_operands(np.random.default_rng(11), np.uint8, np.int8, x, w)
    assert_matches_reference(args, threads=threads, **attributes)


# ------------------------------------------------------------------------------------------------------- packed weights


@pair
@pytest.mark.parametrize(("group", "channels"), [(1, 6), (2, 3), (6, 1)])
def test_packed_weights_give_the_same(tx: type, tw: type, group: int, channels: int) -> None:
    args = qlinear_operands(np.random.default_rng(12), tx, tw, (2, 6, 9, 10), (12, channels, 3, 3))
    attributes: dict[str, Any] = {"group": group, "pads": [1, 1, 1, 1]}
    expected = kernels.qlinear_conv(*args, **attributes)
    packed = kernels.pack_conv_weights(args[3], group, num_threads=2)
    assert (packed.w.shape, packed.group) == (args[3].shape, group)
    sums = kernels.conv_integer(args[0], args[3], args[2], args[5], **attributes)
    args[3][:] = 0  # the packed weights are a copy
    args[3] = packed
    for threads in (1, 2):
        assert_same(kernels.qlinear_conv(*args, num_threads=threads, **attributes), expected)
        assert_same(kernels.conv_integer(args[0], packed, args[2], args[5], num_threads=threads, **attributes), sums)


def test_attributes_may_be_arrays_and_are_checked_when_they_are_nested() -> None:
    x, w = np.ones((1, 1, 5, 5), np.uint8), np.ones((1, 1, 3, 3), np.int8)
    expected = reference.conv_integer(x, w, strides=[2, 1])
    for strides in ([2, 1], (2, 1), np.array([2, 1])):
        np.testing.assert_array_equal(kernels.conv_integer(x, w, strides=strides), expected)
    with pytest.raises(KernelError, match="strides"):
        kernels.conv_integer(x, w, strides=[[2, 1]])


def test_packed_weights_of_another_convolution_or_kernel() -> None:
    x, w = np.zeros((1, 4, 5, 5), np.uint8), np.zeros((4, 2, 3, 3), np.int8)
    packed = kernels.pack_conv_weights(w, 2)
    with pytest.raises(KernelError, match="packed for group=2; the convolution has group=1"):
        kernels.conv_integer(x[:, :2], packed)
    with pytest.raises(KernelError, match="input channels"):
        kernels.conv_integer(x[:, :2], packed, group=2)
    before = kernels.isa_info()
    kernels.cap_isa("scalar")
    try:
        if packed.kernel == kernels.isa_info().kernel:
            assert kernels.conv_integer(x, packed, group=2).shape == (1, 4, 3, 3)
        else:
            message = (
                rf"^'w' is packed for the kernel {packed.kernel}; the one in force is {kernels.isa_info().kernel}\.$"
            )
            with pytest.raises(KernelError, match=message):
                kernels.conv_integer(x, packed, group=2)
    finally:
        kernels.cap_isa(before.cap)
    assert kernels.pack_conv_weights(w[:, :1], 4).kernel is None  # depthwise


@pytest.mark.parametrize(
    ("w", "group", "message"),
    [
        (np.zeros((4, 2), np.int8), 1, "expected \\(M, C/group"),
        (np.zeros((4, 2, 1, 1, 1, 1), np.int8), 1, "expected \\(M, C/group"),
        (np.zeros((4, 2, 3), np.int8), 3, "multiple of group=3"),
        (np.zeros((4, 2, 3), np.int8), 0, "multiple of group=0"),
        (np.zeros((4, 2, 3), np.int32), 1, "'w' has type int32"),
    ],
)
def test_what_cannot_be_packed(w: np.ndarray, group: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        kernels.pack_conv_weights(w, group)


def test_attributes_of_any_integer_type() -> None:
    x, w = np.ones((1, 2, 6, 6), np.uint8), np.ones((2, 1, 3, 3), np.int8)
    expected = kernels.conv_integer(x, w, group=2, strides=[2, 2], pads=[1, 0, 1, 0])
    attributes: dict[str, Any] = {"group": np.int64(2), "strides": np.array([2, 2]), "pads": np.array([1, 0, 1, 0])}
    assert_same(kernels.conv_integer(x, w, **attributes), expected)
    with pytest.raises(TypeError, match="stride"):
        kernels.conv_integer(x, w, group=2, stride=[2, 2])


# -------------------------------------------------------------------------------------------------------- onnxruntime

ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"pads": [1, 2, 0, 1], "strides": [2, 1]},
    {"dilations": [2, 3], "pads": [2, 2, 2, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"auto_pad": "VALID", "strides": [3, 1]},
    {"group": 2, "pads": [1, 1, 1, 1]},
    {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 2]},
]


@pair
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_conv_integer_equals_onnxruntime(tx: type, tw: type, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    x, w = random_codes(rng, tx, (2, 6, 10, 9)), random_codes(rng, tw, (12, 6 // attributes.get("group", 1), 3, 3))
    zx, zw = random_codes(rng, tx, ()), random_codes(rng, tw, ())
    expected = run_ort("ConvInteger", [x, w, zx, zw], **attributes)[0]
    assert_same(kernels.conv_integer(x, w, zx, zw, **attributes), expected)


IN_ORT = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]  # the output has the type of x


@pytest.mark.parametrize(("tx", "tw"), IN_ORT, ids=lambda t: t.__name__)
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_qlinear_conv_equals_onnxruntime(tx: type, tw: type, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    x, w = random_codes(rng, tx, (2, 6, 10, 9)), random_codes(rng, tw, (12, 6 // attributes.get("group", 1), 3, 3))
    for of_w, with_bias in itertools.product([(), (12,)], [False, True]):
        args = [
            x,
            f32(0.02),
            random_codes(rng, tx, ()),
            w,
            f32(rng.random(of_w) * 0.01 + 0.001),
            random_codes(rng, tw, of_w),
            f32(0.3),
            random_codes(rng, tx, ()),
            rng.integers(-20_000, 20_000, 12, dtype=np.int32) if with_bias else None,
        ]
        assert_same(kernels.qlinear_conv(*args, **attributes), run_ort("QLinearConv", args, **attributes)[0])


@pytest.mark.parametrize("size", [(17,), (5, 6, 7)], ids=["1-D", "3-D"])
def test_other_ranks_equal_onnxruntime(size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    kernel = (3,) * len(size)
    x, w = random_codes(rng, np.uint8, (2, 4, *size)), random_codes(rng, np.int8, (5, 4, *kernel))
    attributes = {"pads": [1] * len(size) + [2] * len(size), "strides": [2] * len(size)}
    args = [x, f32(0.02), np.uint8(31), w, f32(0.01), np.int8(0), f32(0.5), np.uint8(128)]
    assert_same(kernels.qlinear_conv(*args, **attributes), run_ort("QLinearConv", args, **attributes)[0])
    expected = run_ort("ConvInteger", [x, w, np.uint8(31)], **attributes)[0]
    assert_same(kernels.conv_integer(x, w, np.uint8(31), **attributes), expected)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w": np.zeros((4, 3, 3, 3), np.int8)}, "input channels"),
        ({"w": np.zeros((4, 2, 3), np.int8)}, "w of shape"),
        ({"x": np.zeros((2, 2), np.uint8), "w": np.zeros((4, 2), np.int8)}, "n >= 1"),
        ({"group": 2, "w": np.zeros((3, 1, 3, 3), np.int8)}, "divisible by group"),
        ({"pads": [1, 1]}, "pads=.* expected 4 values"),
        ({"pads": [1, 1, -1, 1]}, "pads=.* expected 4 values >= 0"),
        ({"strides": [0, 1]}, "strides=.* expected 2 values >= 1"),
        ({"dilations": [1]}, "dilations=.* expected 2 values"),
        ({"kernel_shape": [2, 3]}, "kernel_shape"),
        ({"auto_pad": "SAME"}, "auto_pad='SAME'"),
        ({"auto_pad": "VALID", "pads": [1, 1, 1, 1]}, "expected one of them"),
        ({"w": np.zeros((4, 2, 9, 3), np.int8)}, "larger than x"),
        ({"x": np.zeros((1, 2, 1, 1, 1, 1), np.uint8), "w": np.zeros((4, 2, 1, 1, 1, 1), np.int8)}, "up to 3"),
        ({"x_zero_point": np.int8(0)}, "'x_zero_point' has type int8"),
        ({"x_zero_point": np.zeros(2, np.uint8)}, "'x_zero_point' has shape"),
        ({"w_zero_point": np.zeros(2, np.int8), "w_scale": np.ones(2, np.float32)}, "'w_zero_point' has shape"),
        ({"w_scale": np.ones(4, np.float32)}, "expected the same shape"),
        ({"bias": np.zeros(4, np.int64)}, "'bias' is int64"),
        ({"bias": np.zeros(3, np.int32)}, "expected int32 of shape"),
        ({"w": np.zeros((4, 2, 3, 3), np.float32)}, "'w' has type float32"),
    ],
)
def test_errors_name_the_argument(changes: dict[str, Any], message: str) -> None:
    arguments = {
        "x": np.zeros((1, 2, 5, 5), np.uint8),
        "x_scale": f32(1),
        "x_zero_point": np.uint8(0),
        "w": np.zeros((4, 2, 3, 3), np.int8),
        "w_scale": f32(1),
        "w_zero_point": np.int8(0),
        "y_scale": f32(1),
        "y_zero_point": np.uint8(0),
    }
    with pytest.raises(KernelError, match=message):
        kernels.qlinear_conv(**(arguments | changes))

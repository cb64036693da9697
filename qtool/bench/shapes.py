"""Sizes that are measured, and how they are spelled in the names of cases."""

from __future__ import annotations

Shape = tuple[int, int, int]

MATMUL: tuple[Shape, ...] = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (128, 768, 768),
    (128, 3072, 768),
    (512, 4096, 4096),
    (32, 11008, 4096),
)
"""M, N, K of matrix products."""
GEMV: Shape = (1, 4096, 4096)
QUICK_MATMUL: tuple[Shape, ...] = ((512, 512, 512), (1024, 1024, 1024), (128, 768, 768))

CONV_3X3 = ((64, 56), (128, 28), (256, 14), (512, 7))
"""Channels and side of ResNet-50's 3x3 convolutions."""
CONV_1X1 = ((64, 256, 56), (256, 64, 56), (512, 128, 28), (1024, 256, 14), (2048, 512, 7))
"""Channels in, channels out and side of its 1x1 convolutions."""
DEPTHWISE = ((96, 112, 2), (144, 56, 1), (384, 14, 1))
"""Channels, side and stride of depthwise 3x3 convolutions."""

ELEMENTS = {"1M": 1 << 20, "16M": 1 << 24, "100M": 100_000_000}


def name(shape: Shape) -> str:
    """512x512x512."""
    return "x".join(map(str, shape))


def operations(shape: Shape) -> float:
    """Multiplications and additions of a product."""
    m, n, k = shape
    return 2.0 * m * n * k

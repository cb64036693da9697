"""Options that several commands share, declared once.

``None`` always means "not given", so that a configuration file or the environment can decide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CALIBRATION = "Calibration"
SELECTION = "Which nodes"
QUANTIZATION = "Quantization"
WEIGHT_ONLY = "Weight-only mode"
RUN = "Run and output"
GATES = "Gates"

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        envvar="QTOOL_NUM_THREADS",
        show_default="all cores this process may use",
        help="Number of threads; the quantized model does not depend on it.",
        rich_help_panel=RUN,
    ),
]
JsonTarget = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        show_default=False,
        help="Write the result as JSON to FILE, or to stdout for '-' (then nothing else is written there).",
        rich_help_panel=RUN,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List everything that is otherwise summarized.", rich_help_panel=RUN)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.", rich_help_panel=RUN)]
Color = Annotated[
    bool | None,
    typer.Option(
        "--color/--no-color",
        show_default="if the output is a terminal and NO_COLOR is not set",
        help="Use colors.",
        rich_help_panel=RUN,
    ),
]
WeightOnly = Annotated[
    bool | None,
    typer.Option(
        "--weight-only",
        show_default=False,
        help="Store the weights quantized and compute in float: needs no calibration data.",
        rich_help_panel=WEIGHT_ONLY,
    ),
]
Block = Annotated[
    int | None,
    typer.Option(
        "--block",
        metavar="N",
        show_default="32 below 8 bits, with e8m0 scales and for MatMulNBits, else one scale per channel",
        help="Elements per scale, along the axis that products are summed over.",
        rich_help_panel=WEIGHT_ONLY,
    ),
]
ScaleType = Annotated[
    str | None,
    typer.Option(
        "--scale-type",
        metavar="float8e8m0",
        show_default="the type of the weight",
        help="Element type of scales; float8e8m0 with float8 or float4 weights gives the MX formats.",
        rich_help_panel=WEIGHT_ONLY,
    ),
]
MatMulNBits = Annotated[
    bool | None,
    typer.Option(
        "--matmul-nbits",
        show_default=False,
        help="Write onnxruntime's own operators (com.microsoft.MatMulNBits, GatherBlockQuantized) instead of "
        "DequantizeLinear.",
        rich_help_panel=WEIGHT_ONLY,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        show_default=False,
        help="Read settings from the \\[quantize] table of FILE.toml; options given here win.",
        rich_help_panel=QUANTIZATION,
    ),
]


def examples(*commands: str) -> str:
    """The examples at the end of a command's help, one per line."""
    return "\n".join(["Examples:", *(f"$ {command}" for command in commands)])

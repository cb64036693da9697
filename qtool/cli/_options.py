"""Options that several commands share, declared once.

``None`` always means "not given", so that a configuration file or the environment can decide.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

CALIBRATION = "Calibration"
SELECTION = "Which nodes"
QUANTIZATION = "Quantization"
WEIGHT_ONLY = "Weight-only mode"
RUN = "Run and output"
LAYERS = "Layers"
GATES = "Gates"


def output_file(metavar: str, what: str, *, default: str | Literal[False] = False) -> Any:
    """The option ``-o``; what it says when it is not given differs by command.

    Args:
        metavar: What stands for the file in the help.
        what: What goes there.
        default: Where that goes by itself; False where the option must be given.
    """
    return typer.Option(
        "--output",
        "-o",
        metavar=metavar,
        parser=_file,
        show_default=default,
        help=f"Where {what}.",
        rich_help_panel=RUN,
    )


def _file(text: str) -> Path:
    """A path that is no folder; ``Path`` would drop the slash that says so.

    Raises:
        ConfigError: If it ends with one.
    """
    from qtool.errors import ConfigError

    if text.endswith(tuple(filter(None, (os.sep, os.altsep)))):
        raise ConfigError(f"Output '{text}' is a folder; expected the name of a file.")
    return Path(text)


def _register(libraries: list[str] | None) -> None:
    if libraries:
        from qtool.api import register_custom_ops

        for library in libraries:
            register_custom_ops(library)


CustomOps = Annotated[
    list[str] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIB",
        callback=_register,
        show_default=False,
        help="Shared library of operators that onnxruntime does not have itself. Repeatable.",
        rich_help_panel=RUN,
    ),
]
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
MarkdownTarget = Annotated[
    str | None,
    typer.Option(
        "--markdown",
        metavar="FILE|-",
        show_default=False,
        help="Write the result as Markdown, for a comment on a change, to FILE, or to stdout for '-'.",
        rich_help_panel=RUN,
    ),
]
JUnitTarget = Annotated[
    str | None,
    typer.Option(
        "--junit",
        metavar="FILE|-",
        show_default=False,
        help="Write JUnit XML with a test case per gate, which CI shows, to FILE, or to stdout for '-'.",
        rich_help_panel=RUN,
    ),
]
HtmlTarget = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE|-",
        show_default=False,
        help="Write a report with charts as one HTML file that needs nothing else to FILE, or to stdout for '-'. Needs "
        r"the extra 'report': pip install 'qtool\[report]'.",
        rich_help_panel=RUN,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="List everything that is otherwise summarized.", rich_help_panel=RUN)
]
Overwrite = Annotated[
    bool, typer.Option("--force", help="Overwrite the output file if it exists.", rich_help_panel=RUN)
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Overwrite the output file if it exists; accept a model that holds quantized operators already.",
        rich_help_panel=RUN,
    ),
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
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="TYPE",
        show_default="int8",
        help="Element type of weights: int8, uint8, int16, uint16, int4, uint4, int2, uint2, float8e4m3fn or "
        "float8e5m2; in weight-only mode also float4e2m1, and no 16 bits.",
        rich_help_panel=QUANTIZATION,
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

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        show_default="ort-x64",
        help="What the model is for: ort-x64, avx2, openvino, ort-arm, portable, qnn or tensorrt. It decides the "
        "defaults of form, types and symmetry, and what is legal.",
        rich_help_panel=QUANTIZATION,
    ),
]

DATA_HELP = (
    "a file, a folder or a quoted glob of .npz files with one array per model input, samples on the leading axis; .npy "
    "files named after the inputs, or NAME=FILE.npy for each; or a folder of ONNX test data (test_data_set_0). "
    "Repeatable."
)
SampleCount = Annotated[
    int | None,
    typer.Option(
        "--samples",
        metavar="N",
        min=1,
        show_default="all",
        help="Use N samples of the data: the first ones, or those that --shuffle puts first.",
        rich_help_panel=CALIBRATION,
    ),
]
Shuffle = Annotated[
    int | None,
    typer.Option(
        "--shuffle",
        metavar="SEED",
        min=0,
        show_default="the order of the data",
        help="Take the samples in an order that SEED decides. Samples of .npz files are copied to a temporary file for "
        "that, as far as they are used.",
        rich_help_panel=CALIBRATION,
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="N|auto",
        show_default="auto",
        help="Run up to N samples at once, where the model leaves that open; the result does not depend on it.",
        rich_help_panel=RUN,
    ),
]


MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="BYTES",
        show_default="no limit",
        help="Keep the process below this much memory, or refuse: 512M, 2G (decimal) or a number of bytes. The result "
        "does not depend on it.",
        rich_help_panel=RUN,
    ),
]
OnNan = Annotated[
    str,
    typer.Option(
        "--on-nan",
        metavar="stop|skip",
        help="What a NaN in an observed tensor means: stop and say where it comes from, or leave such values out and "
        "say how many.",
        rich_help_panel=CALIBRATION,
    ),
]
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def byte_count(text: str | None) -> int | None:
    """Value of ``--max-memory``.

    Raises:
        ConfigError: If it is no positive number with a known unit.
    """
    from qtool.errors import ConfigError

    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?i?)B?", text.strip(), re.ASCII)
    unit = _UNITS.get(match[2].replace("k", "K")) if match else None  # an "i" alone is none
    count = int(float(match[1]) * unit) if match and unit else 0
    if count < 1:
        raise ConfigError(f"Option --max-memory is '{text}'; expected a size as 512M, 2G or 1.5Gi.")
    return count


def on_nan(text: str) -> Literal["raise", "skip"]:
    """Value of ``--on-nan``.

    Raises:
        ConfigError: If it is neither ``stop`` nor ``skip``.
    """
    from qtool.errors import ConfigError

    if text not in ("stop", "skip"):
        raise ConfigError(f"Option --on-nan is '{text}'; expected stop or skip.")
    return "skip" if text == "skip" else "raise"


def batch_size(text: str | None) -> int | None:
    """Value of ``--batch``; ``None`` for ``auto``.

    Raises:
        ConfigError: If it is neither ``auto`` nor a positive number.
    """
    from qtool.errors import ConfigError

    if text is None or text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"Option --batch is '{text}'; expected a number of samples from 1 on, or auto.")
    return int(text)


NoPrepare = Annotated[
    bool | None,
    typer.Option(
        "--prepare/--no-prepare",
        show_default="prepare",
        help="Fold, evaluate and inline in the float graph first, or take it as it is but for what a plan needs: "
        "names, constants as initializers, an opset that is high enough.",
        rich_help_panel=QUANTIZATION,
    ),
]
Dynamic = Annotated[
    bool | None,
    typer.Option(
        "--dynamic",
        show_default=False,
        help="Quantize the weights of MatMul, Gemm and LSTM now and activations in the running model: no calibration. "
        "Samples given with --calib then only verify the result.",
        rich_help_panel=QUANTIZATION,
    ),
]


Show = Annotated[
    str | None,
    typer.Option(
        "--show",
        metavar="quantized|skipped|all",
        show_default=False,
        help="Of the plan, list these nodes: what becomes of each, types, where scales come from, bytes, and why not.",
        rich_help_panel=RUN,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="PATTERN=KEY:VALUE,..",
        show_default=False,
        help="Settings of the nodes that match: weights, per_channel, block, activations, symmetric, method, format "
        "(as '/head/*=weights:uint8,method:mse'), or float. Repeatable: the last one that says something counts.",
        rich_help_panel=SELECTION,
    ),
]


def show(text: str | None) -> str | None:
    """Value of ``--show``.

    Raises:
        ConfigError: If it is none of the three words.
    """
    from qtool.errors import ConfigError

    if text not in (None, "quantized", "skipped", "all"):
        raise ConfigError(f"Option --show is '{text}'; expected quantized, skipped or all.")
    return text


def overrides(given: list[str] | None) -> list[dict[str, Any]] | None:
    """Values of ``--override`` as tables; None if there are none.

    Raises:
        ConfigError: For one that is no override.
    """
    from qtool.overrides import parse_override

    return [parse_override(text) for text in given] if given else None


def examples(*commands: str) -> str:
    """The examples at the end of a command's help, one per line."""
    return "\n".join(["Examples:", *(f"$ {command}" for command in commands)])


Layers = Annotated[
    bool | None,
    typer.Option(
        "--layers/--no-layers",
        show_default="no-layers",
        help="Show which quantized operators the noise comes from, why, and what to type next.",
        rich_help_panel=LAYERS,
    ),
]
Sensitivity = Annotated[
    bool | None,
    typer.Option(
        "--sensitivity/--no-sensitivity",
        show_default="no-sensitivity",
        help="Show what each quantized operator alone gains in float: one run of the model for each.",
        rich_help_panel=LAYERS,
    ),
]
Checks = Annotated[
    list[str] | None,
    typer.Option(
        "--checks",
        metavar="NAMES",
        show_default="quick",
        help="Check the runtime: miscompile, fusion, ranges (these are quick), saturation (accuracy on a processor "
        "without VNNI), memory, all or none. Names with commas between, or repeatable.",
        rich_help_panel=LAYERS,
    ),
]
LayerSamples = Annotated[
    int | None,
    typer.Option(
        "--layer-samples",
        metavar="N",
        min=1,
        show_default="by their size",
        help="Samples that --layers and --sensitivity look at, the first in order.",
        rich_help_panel=LAYERS,
    ),
]

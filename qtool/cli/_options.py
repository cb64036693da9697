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


def examples(*commands: str) -> str:
    """The examples at the end of a command's help, one per line."""
    return "\n".join(["Examples:", *(f"$ {command}" for command in commands)])

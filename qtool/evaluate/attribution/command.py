"""A command line that quantizes the model again, with the settings that the quantized file records, and one more."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.config import QuantConfig
from qtool.errors import ConfigError
from qtool.runtime.custom_ops import custom_op_libraries
from qtool.runtime.paths import as_argument

if TYPE_CHECKING:
    import onnx

PLACEHOLDER = "CALIB"
"""Stands for the calibration data where nobody said where they are."""

_VALUES = {
    "format": "--format",
    "activations": "--activations",
    "weights": "--weights",
    "method": "--method",
    "block": "--block",
    "scale_type": "--scale-type",
    "target": "--target",
}
_FLAGS: dict[str, tuple[str | None, str | None]] = {
    "per_channel": ("--per-channel", "--per-tensor"),
    "symmetric_activations": ("--symmetric", "--asymmetric"),
    "dedicated_qdq": ("--dedicated-qdq", None),
    "dynamic": ("--dynamic", None),
    "allow_empty": ("--allow-empty", None),
    "weight_only": ("--weight-only", None),
    "matmul_nbits": ("--matmul-nbits", None),
    "prepare": (None, "--no-prepare"),
}
_PATTERNS = {"include": "--include", "exclude": "--exclude"}
_MODE = ("target", "dynamic", "weight_only")


@dataclass(frozen=True)
class Origin:
    """How a quantized file was made, as far as it says.

    Attributes:
        config: Settings that differ from the defaults; None if the file is not qtool's.
        calibration: SHA-256 of the files that it was calibrated on.
        random: Number of made-up samples that it was calibrated on.
        recorded: All settings.
        samples: Number of samples that it was calibrated on.
    """

    config: Mapping[str, Any] | None
    calibration: tuple[str, ...] = ()
    random: int | None = None
    recorded: Mapping[str, Any] | None = None
    samples: int | None = None

    @property
    def needs_samples(self) -> bool:
        """Whether quantizing it again takes samples."""
        config = self.config or {}
        return not config.get("dynamic") and not config.get("weight_only")


def origin_of(proto: onnx.ModelProto) -> Origin:
    """What the metadata of a quantized model record; damaged entries count as missing."""
    props = {entry.key: entry.value for entry in proto.metadata_props}
    config = _loaded(props.get("qtool.config"))
    hashes = _loaded(props.get("qtool.calibration.sha256"))
    samples = props.get("qtool.calibration.samples", "")
    made_up = props.get("qtool.calibration.random") == "true" and samples.isdigit()
    if not isinstance(config, dict) or not _is_whole(config):
        return Origin(_guessed(proto))
    calibration = tuple(h for h in hashes if isinstance(h, str)) if isinstance(hashes, list) else ()
    count = int(samples) if samples.isdigit() else None
    return Origin(given_settings(config), calibration, count if made_up else None, config, count)


def command(
    origin: Origin,
    float_model: str,
    output: str,
    calibration: Sequence[str],
    extra: Sequence[tuple[str, str | None]] = (),
    samples: int | None = None,
) -> str:
    """A line for a POSIX shell.

    Args:
        origin: How the quantized file was made.
        float_model: Path of the float model.
        output: Where the new file goes.
        calibration: Paths of samples; none: a placeholder.
        extra: (option, value) of what is to change.
        samples: How many of the samples are to be taken; None: all.
    """
    words = ["qtool", "quantize", as_argument(float_model)]
    if origin.random is not None and origin.needs_samples:
        words += ["--random-calib", str(origin.random)]
    elif origin.needs_samples:
        for path in calibration or (PLACEHOLDER,):
            words += ["--calib", as_argument(path)]
        words += [] if samples is None else ["--samples", str(samples)]
    for library in custom_op_libraries():
        words += ["--custom-ops", library]
    replaced = {option for option, _ in extra}
    config = origin.config or {}
    target = next((text for option, text in extra if option == "--target"), None)
    if target is not None and origin.recorded is not None:
        # what was the default of the one target may not be that of the other
        config = given_settings({**origin.recorded, "target": target})
    for name, value in config.items():
        words += _option(name, value, replaced)
    for option, text in extra:
        words += [option] if text is None else [option, text]
    return shlex.join([*words, "-o", as_argument(output)])


def unknown_settings(origin: Origin) -> list[str]:
    """Recorded settings that no option of the command line stands for."""
    known = {*_VALUES, *_FLAGS, *_PATTERNS, "tensor_methods", "overrides"}
    return [name for name in origin.config or {} if name not in known]


def _option(name: str, value: Any, replaced: set[str]) -> list[str]:
    option = _VALUES.get(name)
    if option is not None:
        # one --method for all goes beside those of single tensors
        return [] if value is None or (option in replaced and name != "method") else [option, str(value)]
    if name in _FLAGS:
        on, off = _FLAGS[name]
        flag = on if value else off
        return [] if flag is None or {on, off} & replaced else [flag]
    if name in _PATTERNS:
        return [word for pattern in value for word in (_PATTERNS[name], pattern)]
    if name == "tensor_methods":
        return [word for glob, method in value for word in ("--method", f"{glob}={method}")]
    if name == "overrides":
        return [word for table in value for text in _overrides(table) for word in ("--override", text)]
    return []


def _overrides(table: Mapping[str, Any]) -> Iterator[str]:
    """An override of a file as the command line has it: one for each pattern."""
    settings = {key: value for key, value in table.items() if key not in ("nodes", "float")}
    words = [f"{key}:{str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
    for pattern in table["nodes"]:
        yield f"{pattern}={','.join(words) or 'float'}"


def literal(name: str) -> str:
    """A glob that matches a name and nothing else; most names are one."""
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
    # a node may be called as the pattern of an operator is written
    return f"[{name[0]}]{escaped[1:]}" if name.startswith(("op:", "domain:")) else escaped


def exclusion(node: str) -> str:
    """The option that leaves a node in float, as a shell takes it."""
    return "--exclude '" + literal(node).replace("'", "'\"'\"'") + "'"


def calibration_files(
    hashes: Sequence[str], folders: Sequence[Path], stem: str = "", most_bytes: int = 1 << 29
) -> list[str]:
    """The files beside the models and the data that are those which the quantized file was calibrated on.

    Args:
        hashes: SHA-256 of the files, in order.
        folders: Where to look.
        stem: Files whose names begin so are looked at first.
        most_bytes: How much is read at most.

    Returns:
        Their paths, in the order of the hashes; empty unless all were found.
    """
    import hashlib

    wanted = set(hashes)
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        candidates = [*folder.glob("*.npz"), *folder.glob("*.npy")]
        for path in sorted(candidates, key=lambda p: (not p.name.startswith(stem), "calib" not in p.name, p.name)):
            if not wanted - found.keys():
                break
            try:
                size = path.stat().st_size
                if size > most_bytes:
                    continue
                with path.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError:
                continue
            most_bytes -= size
            if digest in wanted:
                found.setdefault(digest, str(path))
    return [found[digest] for digest in hashes] if wanted and wanted <= found.keys() else []


def fresh_output(quantized: str) -> str:
    """A name beside the quantized file that is free."""
    path = Path(quantized)
    stem = path.name.removesuffix(".onnx")
    for number in range(1, 1000):
        candidate = path.with_name(f"{stem}.fixed{number if number > 1 else ''}.onnx")
        if not candidate.exists():
            return str(candidate)
    return str(path.with_name(f"{stem}.fixed.onnx"))


def _guessed(proto: onnx.ModelProto) -> dict[str, Any] | None:
    """The mode of a file of another tool."""
    types = {node.op_type for node in proto.graph.node}
    if types & {"DynamicQuantizeLinear", "DynamicQuantizeLSTM"}:
        return {"dynamic": True}
    return None


def _is_whole(config: Mapping[str, Any]) -> bool:
    """Whether the settings that this version knows are such as it would take."""
    known = QuantConfig().to_dict()
    try:
        QuantConfig().with_options(**{name: value for name, value in config.items() if name in known})
    except (ConfigError, TypeError):
        return False
    return True


def given_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a command has to give: target and mode, and what differs from the defaults of those."""
    plain, defaults = QuantConfig().to_dict(), _defaults(config)
    names = [*(name for name in defaults if name in config), *(name for name in config if name not in defaults)]
    defaults |= {name: plain[name] for name in _MODE}
    return {name: config[name] for name in names if name not in defaults or config[name] != defaults[name]}


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings are where only target and mode are given."""
    mode = {name: config[name] for name in _MODE if name in config}
    try:
        return QuantConfig().with_options(**mode).to_dict()
    except ConfigError:  # a target of another version
        return {}


def _loaded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None

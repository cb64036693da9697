"""What a user can ask for: one frozen, validated value; TOML in, dict out.

The config says what the result shall be. How the work is done (threads, progress, overwriting) is an argument of the
functions in api/, because it must not change a byte of the result.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qtool.dtypes import BLOCKED_FLOOR, QDTYPES
from qtool.errors import ConfigError
from qtool.overrides import ACTIVATION_KEYS, Override, overrides_from
from qtool.targets import DEFAULT_TARGET, TARGETS, target
from qtool.targets.base import ALL_ACTIVATIONS, ALL_WEIGHTS, Target
from qtool.weight_settings import WEIGHT_ONLY_DTYPES, check_weight_only, effective_block, refuse_activation_settings

FORMATS = ("qlinear", "qdq")
ACTIVATION_DTYPES = ALL_ACTIVATIONS
WEIGHT_DTYPES = ALL_WEIGHTS
# (activations, weights) that QLinearMatMul and QLinearConv exist for: emission.md 3
QLINEAR_PAIRS = (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))

EIGHT_BIT = ("uint8", "int8")
TWO_BIT = ("int2", "uint2")
_FLAGS = (
    "per_channel",
    "symmetric_activations",
    "dedicated_qdq",
    "dynamic",
    "allow_empty",
    "weight_only",
    "matmul_nbits",
    "prepare",
)
# the default of a setting that the target decides about where nobody else does
_OF_TARGET: Any = None
# settings that only mean something where activations are calibrated
_OF_CALIBRATION = {
    "symmetric_activations": "--symmetric",
    "dedicated_qdq": "--dedicated-qdq",
    "method": "--method",
    "tensor_methods": "--method",
}


@dataclass(frozen=True)
class QuantConfig:
    """Settings that change the quantized model.

    A setting that is not given, or None, takes the default of the target. Which ones were given is remembered: a copy
    for another target takes the defaults of that one.

    Attributes:
        target: What the model is for, one of ``qtool.targets``: it decides the defaults of format, types and symmetry,
            and what is legal.
        format: ``qlinear`` (QLinearMatMul/QLinearConv where inputs and output are quantized) or ``qdq``.
        activations: Element type of activations.
        weights: Element type of weights.
        per_channel: Weight scales per output channel; otherwise one per tensor.
        symmetric_activations: Use the type's constant zero point for activations.
        method: Range method of activations, ``auto`` or another of ``calibrate.methods``; may carry a parameter
            (``percentile:99.9``).
        tensor_methods: (glob, method) pairs: the method of tensors whose name matches, instead of ``method``; where
            several match, the last one counts. A mapping is taken as well.
        include: Only these nodes (names, globs, ``op:Type``); empty means all.
        exclude: Not these nodes.
        dedicated_qdq: Give each consumer its own Q/DQ pair instead of one pair per tensor.
        dynamic: Let the running model quantize its activations (DynamicQuantizeLinear), so that nothing is calibrated.
        allow_empty: Accept a model in which nothing can be quantized.
        weight_only: Store weights quantized and compute in float; no calibration.
        block: Elements per scale along the summed axis (weight-only mode); None for what the type usually has.
        scale_type: ``float8e8m0`` for the MX formats (weight-only mode); None for the weight's own type.
        matmul_nbits: Write ``com.microsoft.MatMulNBits`` instead of DequantizeLinear (weight-only mode).
        prepare: Fold, evaluate and inline in the float graph first; otherwise only what a plan cannot do without.
        overrides: Settings of single nodes, see :mod:`qtool.overrides`; where several match a node, the last one that
            says something counts. Mappings, as tables ``[[quantize.override]]`` of a file, are taken as well.
    """

    target: str = DEFAULT_TARGET
    format: str = _OF_TARGET
    activations: str = _OF_TARGET
    weights: str = _OF_TARGET
    per_channel: bool = True
    symmetric_activations: bool = _OF_TARGET
    method: str = "auto"
    tensor_methods: tuple[tuple[str, str], ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    dedicated_qdq: bool = False
    dynamic: bool = False
    allow_empty: bool = False
    weight_only: bool = False
    block: int | None = None
    scale_type: str | None = None
    matmul_nbits: bool = False
    prepare: bool = True
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        defaults = self._take_defaults()
        for name in ("include", "exclude"):  # lists come from TOML and from callers
            object.__setattr__(self, name, _patterns(name, getattr(self, name)))
        object.__setattr__(self, "overrides", overrides_from(self.overrides))
        _choice("format", self.format, FORMATS)
        _choice("activations", self.activations, ACTIVATION_DTYPES)
        _choice("weights", self.weights, WEIGHT_ONLY_DTYPES if self.weight_only is True else WEIGHT_DTYPES)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"Option '{name}' is {getattr(self, name)!r}; expected true or false.")
        if not isinstance(self.method, str):
            raise ConfigError(f"Option 'method' is {self.method!r}; expected the name of a range method.")
        object.__setattr__(self, "tensor_methods", _pairs("tensor_methods", self.tensor_methods))
        if self.dynamic and self.weight_only:
            raise ConfigError(
                "Dynamic mode and weight-only mode are asked for; expected one of them.",
                hint="Drop --dynamic or --weight-only.",
            )
        self.refuse_unread([name for name, value in defaults.items() if getattr(self, name) != value])
        check_weight_only(self)
        self._check_target()
        self._check_overrides()
        if self.weight_only:
            return
        if self.dynamic:
            self._check_dynamic()
        if self.format == "qlinear" and (self.activations, self.weights) not in QLINEAR_PAIRS:
            pairs = ", ".join(f"{a}/{w}" for a, w in QLINEAR_PAIRS)
            raise ConfigError(
                f"Format qlinear has no operator for {self.activations} activations with {self.weights} weights; "
                f"expected activations/weights of {pairs}.",
                hint="Use --format qdq, which takes other pairs.",
            )
        if self.weights in TWO_BIT and self.activations in EIGHT_BIT:
            others = ", ".join(w for w in WEIGHT_DTYPES if w not in TWO_BIT)
            raise ConfigError(
                f"Weights of {self.weights} do not go with {self.activations} activations: onnxruntime would fuse them "
                "into an 8-bit operator that it then refuses; expected uint16 or int16 activations.",
                hint=f"Use --activations uint16, or weights of {others}.",
            )

    def _take_defaults(self) -> dict[str, Any]:
        """Fill in what is not given, remember what is, and return the defaults."""
        given = frozenset(f.name for f in fields(self) if getattr(self, f.name) is not f.default)
        facts = target(self.target)
        # the modes without calibration have one form each, whatever the target calibrates
        plain = target(DEFAULT_TARGET) if self.dynamic is True or self.weight_only is True else facts
        defaults: dict[str, Any] = {f.name: f.default for f in fields(self)}
        defaults["format"], defaults["activations"] = plain.formats[0], plain.activations[0]
        choices = facts.stored if self.weight_only is True else facts.dynamic_weights if self.dynamic is True else ()
        defaults["weights"] = (choices or facts.weights)[0]
        activations = defaults["activations"] if self.activations is _OF_TARGET else self.activations
        defaults["symmetric_activations"] = plain.default_symmetry(activations)
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        vars(self)["_given"] = given
        return defaults

    @property
    def facts(self) -> Target:
        """What is known about the target."""
        return target(self.target)

    def refuse_unread(self, given: Collection[str]) -> None:
        """Refuse settings that the mode has no use for.

        Args:
            given: Names of the settings that somebody asked for.

        Raises:
            ConfigError: For the first one that would be ignored.
        """
        if self.weight_only:
            refuse_activation_settings(given)
        for name, option in _OF_CALIBRATION.items() if self.dynamic else ():
            if name in given:
                raise ConfigError(
                    f"Option '{name}' is about calibrated activations; dynamic mode calibrates none.",
                    hint=f"Drop {option} or --dynamic.",
                )

    def _check_target(self) -> None:
        """Refuse what the target does not take."""
        facts = self.facts
        if self.dynamic and not facts.dynamic_weights:
            able = ", ".join(name for name, one in TARGETS.items() if one.dynamic_weights)
            raise ConfigError(
                f"Target {self.target} has no operators of dynamic mode; expected one of {able}.",
                hint="Calibrate instead of --dynamic, or drop --target.",
            )
        if self.weight_only and not facts.stored:
            able = ", ".join(name for name, one in TARGETS.items() if one.stored)
            raise ConfigError(
                f"Target {self.target} computes nothing with quantized weights alone; expected one of {able}.",
                hint="Calibrate instead of --weight-only, or drop --target.",
            )
        if self.matmul_nbits and not facts.microsoft_operators:
            able = ", ".join(name for name, one in TARGETS.items() if one.microsoft_operators)
            raise ConfigError(
                f"Target {self.target} has no com.microsoft.MatMulNBits; expected one of {able}.",
                hint="Leave out --matmul-nbits.",
            )
        takes = {"weights": facts.stored if self.weight_only else facts.weights}
        if not (self.weight_only or self.dynamic):
            takes |= {"format": facts.formats, "activations": facts.activations}
        for name, choices in takes.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"Option '{name}' is {getattr(self, name)!r}; target {self.target} takes {', '.join(choices)}.",
                    hint=f"Drop --{name}, or choose another target.",
                )
        block = effective_block(self) if self.weight_only else None
        if block is not None and facts.max_opset is not None and facts.max_opset < BLOCKED_FLOOR[0]:
            raise ConfigError(
                f"Blocks of {block} need opset {BLOCKED_FLOOR[0]}; target {self.target} stays below, with one "
                "scale per channel or per tensor.",
                hint="Drop --block, or choose another target.",
            )
        if not facts.zero_points and not self.symmetric_activations and not (self.weight_only or self.dynamic):
            raise ConfigError(
                f"Asymmetric activations are asked for; target {self.target} takes zero points of 0 only.",
                hint="Drop --asymmetric, or choose another target.",
            )

    def _check_overrides(self) -> None:
        """Judge the settings of single nodes as if they were those of all, and refuse those that are not read."""
        for override in self.overrides:
            unread = [key for key in ACTIVATION_KEYS if (self.dynamic or self.weight_only) and key in override.given]
            if unread or (override.block is not None and not self.weight_only):
                mode = "weight-only" if self.weight_only else "dynamic" if self.dynamic else "static"
                raise ConfigError(
                    f"{override.subject} gives {', '.join(unread) or 'block'}, which {mode} mode has no use for."
                )
            try:
                self.with_override(override)
            except ConfigError as error:
                raise ConfigError(f"{override.subject}: {error.message}", hint=error.hint) from error

    def with_override(self, override: Override) -> QuantConfig:
        """The settings that hold for a node.

        Operators on codes do not take every pair of types; a node of other types is written in QDQ form, unless the
        override asks for the operator.
        """
        changes = override.settings
        pair = (changes.get("activations", self.activations), changes.get("weights", self.weights))
        static = not (self.dynamic or self.weight_only)
        if "format" not in changes and static and pair not in QLINEAR_PAIRS and "qdq" in self.facts.formats:
            changes["format"] = "qdq"
        return self.with_options(**changes, overrides=())

    @property
    def has_other_types(self) -> bool:
        """Whether an override gives single nodes other types, or activations another zero point."""
        return any(not {"activations", "weights", "symmetric"}.isdisjoint(o.given) for o in self.overrides)

    @property
    def variants(self) -> tuple[QuantConfig, ...]:
        """These settings, and those that overrides make of them."""
        return (self, *(self.with_override(o) for o in self.overrides if not o.keep_float))

    def _check_dynamic(self) -> None:
        """Refuse types that integer products do not take."""
        if self.activations != "uint8":
            raise ConfigError(
                f"Dynamic mode quantizes activations to uint8; found {self.activations}.",
                hint="Drop --activations, or calibrate instead of --dynamic.",
            )
        if self.weights not in EIGHT_BIT:
            raise ConfigError(
                f"Dynamic mode has weights of int8 or uint8; found {self.weights}.", hint="Drop --weights or --dynamic."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, every setting, in the order of declaration."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return plain | {
            "tensor_methods": [list(pair) for pair in self.tensor_methods],
            "overrides": [override.to_dict() for override in self.overrides],
        }

    def with_options(self, **options: Any) -> QuantConfig:
        """A copy with some settings replaced; ``None`` means "not given".

        Raises:
            ConfigError: For an unknown name, an illegal value, or a combination that cannot be carried out.
        """
        known = {f.name for f in fields(self)}
        for name in options:
            if name not in known:
                raise ConfigError(f"Unknown option '{name}'; expected one of {', '.join(sorted(known))}.")
        kept: frozenset[str] = vars(self)["_given"]
        return type(self)(
            **{name: getattr(self, name) for name in known & kept} | {k: v for k, v in options.items() if v is not None}
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> QuantConfig:
        """Read the ``[quantize]`` table of a TOML file (or its top level, if it has no such table).

        ``custom_ops`` is no setting of the result, and left to :func:`custom_ops_of`.

        Raises:
            ConfigError: If the file cannot be read or parsed, or holds an unknown key or an illegal value.
        """
        document = {key: value for key, value in toml_document(path).items() if key != "eval"}  # evaluate/settings.py
        table = document.get("quantize", document)
        if not isinstance(table, Mapping):
            raise ConfigError(f"Config file '{path}': 'quantize' is {type(table).__name__}; expected a table.")
        stray = [] if table is document else [k for k, v in document.items() if not isinstance(v, Mapping)]
        if stray:
            raise ConfigError(
                f"Config file '{path}': {', '.join(stray)} outside the table [quantize], where nothing reads it.",
                hint="Move it below the line [quantize].",
            )
        settings: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            name = "overrides" if name == "override" else name
            if name in settings:
                raise ConfigError(f"Config file '{path}' gives '{name}' twice.")
            settings[name] = value
        settings.pop("custom_ops", None)
        try:
            return cls().with_options(**settings)
        except ConfigError as error:
            raise ConfigError(f"Config file '{path}': {error.message}", hint=error.hint) from error


def custom_ops_of(path: str | Path) -> tuple[str, ...]:
    """Libraries of custom operators that the ``[quantize]`` table of a TOML file names; none if it says nothing.

    Raises:
        ConfigError: If the file cannot be read or parsed, or the key holds something else than paths.
    """
    document = toml_document(path)
    table = document.get("quantize", document)
    given = [table[key] for key in ("custom_ops", "custom-ops") if isinstance(table, Mapping) and key in table]
    try:
        return library_paths(given[0] if given else (), Path(path).parent)
    except ConfigError as error:
        raise ConfigError(f"Config file '{path}': {error.message}", hint=error.hint) from error


def library_paths(given: object, folder: Path) -> tuple[str, ...]:
    """Value of the key ``custom_ops``: a path or a list of paths, relative to the folder of the file.

    Raises:
        ConfigError: If it is something else.
    """
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, (list, tuple)) or not all(isinstance(one, str) and one for one in paths):
        raise ConfigError(f"Option 'custom_ops' is {given!r}; expected the path of a library or a list of paths.")
    return tuple(str(folder / one) for one in paths)


def toml_document(path: str | Path) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        ConfigError: If the file cannot be read or parsed.
    """
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))  # editors of Windows write a mark in front
    except OSError as error:
        raise ConfigError(f"Config file '{path}' cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"Config file '{path}' is not TOML: {error}.") from error


def _pairs(option: str, value: object) -> tuple[tuple[str, str], ...]:
    items = value.items() if isinstance(value, Mapping) else value
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise ConfigError(f"Option '{option}' is {value!r}; expected globs of tensor names with a range method each.")
    pairs: list[tuple[str, str]] = []
    for item in items:
        pair = tuple(item) if isinstance(item, (list, tuple)) else ()
        if len(pair) != 2 or not all(isinstance(text, str) and text for text in pair):
            raise ConfigError(f"Option '{option}' holds {item!r}; expected a glob of tensor names and a range method.")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _patterns(option: str, value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"Option '{option}' is {value!r}; expected a list of patterns.")
    patterns = tuple(value)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(f"Option '{option}' holds {pattern!r}; expected non-empty patterns.")
    return patterns


def _choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    assert option == "format" or all(c in QDTYPES for c in choices), "Bug: a choice without a row in dtypes.py"
    if value not in choices:
        raise ConfigError(f"Option '{option}' is {value!r}; expected one of {', '.join(choices)}.")

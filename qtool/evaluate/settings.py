"""What an evaluation computes and demands, as options or as the table ``[eval]`` of a TOML file.

[eval]
labels = "labels"
metric = ["sqnr", "kl"]
fail_under = {sqnr = 30}
fail_over = {drop = "0.5pp", kl = 0.01}
min_agreement = 99
checks = ["quick", "saturation"]
layers = true
samples = 500
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from qtool.config import library_paths, toml_document
from qtool.errors import ConfigError
from qtool.evaluate.gates import Gate, parse_gates
from qtool.evaluate.metrics import METRICS, SPECIAL, unknown

_LEAST = {"ctc_blank": 0, "word_separator": 0, "samples": 1, "shuffle": 0, "threads": 1, "layer_samples": 1}


@dataclass(frozen=True)
class EvalSettings:
    """Settings of an evaluation; None or empty where nobody said anything.

    Attributes:
        labels: Key of the labels in the data.
        metric: Names of metrics.
        output: Names of the outputs to compare.
        engine: What runs the quantized model.
        latency: Whether to time both models.
        ctc_blank: Class that is the blank of CTC scores.
        word_separator: Id between words.
        fail_under: Lower limits, name to value.
        fail_over: Upper limits, name to value.
        min_agreement: Percent of decisions that must stay the same.
        samples: How many samples to use.
        shuffle: Seed of their order.
        batch: Largest number of samples in a run, or ``auto``.
        threads: Of the runtime.
        checks: Names of runtime checks.
        layers: Whether to find out where the noise comes from.
        sensitivity: Whether to find out what each operator gains in float.
        layer_samples: Samples that both look at.
        custom_ops: Libraries of operators that onnxruntime does not have itself; of a file, as paths that start at its
            folder.
    """

    labels: str | None = None
    metric: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    engine: str | None = None
    latency: bool | None = None
    ctc_blank: int | None = None
    word_separator: int | None = None
    fail_under: Mapping[str, object] | None = None
    fail_over: Mapping[str, object] | None = None
    min_agreement: float | None = None
    samples: int | None = None
    shuffle: int | None = None
    batch: int | str | None = None
    threads: int | None = None
    checks: tuple[str, ...] = ()
    layers: bool | None = None
    sensitivity: bool | None = None
    layer_samples: int | None = None
    custom_ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom_ops", library_paths(self.custom_ops, Path()))
        for name in ("metric", "output", "checks"):
            value = getattr(self, name)
            names = (value,) if isinstance(value, str) else value
            if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) and one for one in names):
                raise ConfigError(f"Option '{name}' is {value!r}; expected a name or a list of names.")
            object.__setattr__(self, name, tuple(names))
        for name in ("labels", "engine"):
            self._check(name, (str,), "a text")
        if self.batch != "auto":
            self._check_count("batch", 1, "a whole number from 1 on, or 'auto'")
        for name, least in _LEAST.items():
            self._check_count(name, least, f"a whole number from {least} on")
        for name in ("latency", "layers", "sensitivity"):
            self._check(name, (bool,), "true or false")
        self._check("min_agreement", (int, float), "a number")
        for name in ("fail_under", "fail_over"):
            limits = getattr(self, name)
            if limits is None:
                continue
            if not isinstance(limits, Mapping):
                raise ConfigError(f"Option '{name}' is {limits!r}; expected a table, as in {{ sqnr = 30 }}.")
            for key, value in limits.items():
                if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                    raise ConfigError(f"Option '{name}' has {key} = {value!r}; expected a number.")

    def _check(self, name: str, kinds: tuple[type, ...], expected: str) -> None:
        value = getattr(self, name)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise ConfigError(f"Option '{name}' is {value!r}; expected {expected}.")

    def _check_count(self, name: str, least: int, expected: str) -> None:
        self._check(name, (int,), expected)
        value = getattr(self, name)
        if value is not None and value < least:
            raise ConfigError(f"Option '{name}' is {value!r}; expected {expected}.")

    def _check_names(self) -> None:
        """Refuse names that nothing has; a file is to be told before an hour of work."""
        from qtool.evaluate.checks import select_checks
        from qtool.runtime import require_engine

        for name in self.metric:
            if (
                ":" not in name and name not in METRICS and name not in SPECIAL
            ):  # your own are loaded when they are used
                raise ConfigError(f"Option 'metric' holds '{name}'; {unknown(name, [*METRICS, *SPECIAL])}")
        try:
            select_checks(self.checks)
        except ConfigError as error:
            raise ConfigError(f"Option 'checks': {error.message}") from error
        if self.engine is not None:
            try:
                require_engine(self.engine)
            except ConfigError as error:
                raise ConfigError(f"Option 'engine': {error.message}") from error

    @property
    def batch_size(self) -> int | None:
        """Largest number of samples in a run; None to let their size decide."""
        return self.batch if isinstance(self.batch, int) else None

    def with_options(self, **options: Any) -> EvalSettings:
        """A copy with some settings replaced; None and empty ones mean "not given"."""
        given = {name: value for name, value in options.items() if value is not None and value != ()}
        return replace(self, **given)

    def gates(self) -> tuple[Gate, ...]:
        """The thresholds.

        Raises:
            ConfigError: If one has another form or cannot be met.
        """
        return parse_gates(self.fail_under or {}, self.fail_over or {}, self.min_agreement)

    @classmethod
    def from_toml(cls, path: str | Path) -> EvalSettings:
        """Read the table ``[eval]`` of a TOML file.

        Raises:
            ConfigError: If the file cannot be read or parsed, has no such table, or one with an unknown key or an
                illegal value.
        """
        table = toml_document(path).get("eval")
        if table is None:
            raise ConfigError(f"Config file '{path}' has no table [eval].", hint="Write settings below a line [eval].")
        if not isinstance(table, Mapping):
            raise ConfigError(f"Config file '{path}': 'eval' is {type(table).__name__}; expected a table.")
        known = [field.name for field in fields(cls)]
        settings: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in known:
                raise ConfigError(f"Config file '{path}': unknown option '{key}' in [eval]; {unknown(name, known)}")
            if name in settings:
                raise ConfigError(f"Config file '{path}' gives '{name}' twice.")
            settings[name] = value
        try:
            if "custom_ops" in settings:
                settings["custom_ops"] = library_paths(settings["custom_ops"], Path(path).parent)
            found = cls(**settings)
            found.gates()
            found._check_names()
        except ConfigError as error:
            raise ConfigError(f"Config file '{path}': {error.message}", hint=error.hint) from error
        return found


def all_gates(settings: EvalSettings, given: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """Gates of the file and of the command line; where both have one of a name, the command line's."""
    names = {(gate.name, gate.over) for gate in given}
    return (*(gate for gate in settings.gates() if (gate.name, gate.over) not in names), *given)

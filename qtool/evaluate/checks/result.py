"""What a check found, as plain data that every form of the report can show without knowing the check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qtool.evaluate.json_form import Json, encode

State = Literal["ok", "flagged", "skipped"]
Value = bool | int | float | str | None


@dataclass(frozen=True)
class Finding:
    """One thing that a check flags, or lists.

    Attributes:
        subject: Name of the node or tensor that it is about.
        text: One sentence that says what is so.
        suggestion: What to type next: options of a command, or empty.
        values: The figures behind the sentence.
    """

    subject: str
    text: str
    suggestion: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON: infinities and NaN are words."""
        return {
            "subject": self.subject,
            "text": self.text,
            "suggestion": self.suggestion,
            "values": {name: _json(value) for name, value in self.values.items()},
        }


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: Of the check, as in the registry.
        title: Its heading for a reader.
        state: ``ok``, ``flagged`` (the reader should look), or ``skipped`` (not done; the summary says why).
        summary: One sentence.
        findings: The worst first.
        values: Figures of the whole check.
        samples: Samples that it ran; 0 if it ran none.
    """

    name: str
    title: str
    state: State
    summary: str
    findings: tuple[Finding, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    samples: int = 0

    def to_dict(self) -> dict[str, Json]:
        """Strict JSON: infinities and NaN are words."""
        return {
            "name": self.name,
            "title": self.title,
            "state": self.state,
            "summary": self.summary,
            "findings": [finding.to_dict() for finding in self.findings],
            "values": {name: _json(value) for name, value in self.values.items()},
            "samples": self.samples,
        }


def _json(value: Value) -> Json:
    return encode(value) if isinstance(value, float) else value


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 sample``, ``4 samples``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

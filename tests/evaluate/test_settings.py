"""The table [eval] of a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.config import QuantConfig
from qtool.errors import ConfigError
from qtool.evaluate.gates import Gate, parse_gates
from qtool.evaluate.settings import EvalSettings, all_gates

FILE = """
[quantize]
format = "qdq"

[eval]
labels = "labels"
metric = ["sqnr", "kl"]
output = "logits"
engine = "ort"
latency = false
ctc_blank = 0
word-separator = 3
fail_under = {sqnr = 30, top1 = "0.9"}
fail_over = {drop = "0.5pp", kl = 0.01, "drop:f1" = "1%"}
min_agreement = 99
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "qtool.toml"
        path.write_text(text)
        return path

    return write


def test_all_keys(written) -> None:
    settings = EvalSettings.from_toml(written(FILE))
    assert settings == EvalSettings(
        labels="labels",
        metric=("sqnr", "kl"),
        output=("logits",),
        engine="ort",
        latency=False,
        ctc_blank=0,
        word_separator=3,
        fail_under={"sqnr": 30, "top1": "0.9"},
        fail_over={"drop": "0.5pp", "kl": 0.01, "drop:f1": "1%"},
        min_agreement=99,
    )
    assert settings.gates() == (
        Gate("sqnr", 30.0, over=False),
        Gate("top1", 0.9, over=False),
        Gate("drop", 0.5, over=True, unit="pp"),
        Gate("kl", 0.01, over=True),
        Gate("drop:f1", 1.0, over=True, unit="%"),
        Gate("agreement", 99.0, over=False, unit="%"),
    )


def test_quantize_takes_the_same_file(written) -> None:
    assert QuantConfig.from_toml(written(FILE)) == QuantConfig(format="qdq")
    assert QuantConfig.from_toml(written("[eval]\nlabels = 'l'\n")) == QuantConfig()
    assert QuantConfig.from_toml(written("format = 'qdq'\n[eval]\nlabels = 'l'\n")) == QuantConfig(format="qdq")


def test_options_win(written) -> None:
    settings = EvalSettings.from_toml(written(FILE))
    changed = settings.with_options(labels="other", metric=("cosine",), engine=None, output=(), latency=True)
    assert (changed.labels, changed.metric, changed.engine, changed.output, changed.latency) == (
        "other",
        ("cosine",),
        "ort",
        ("logits",),
        True,
    )
    gates = all_gates(settings, parse_gates(["sqnr=20"], ["js=0.1"], 50.0))
    assert [str(gate) for gate in gates] == [
        "--fail-under top1=0.9",
        "--fail-over drop=0.5pp",
        "--fail-over kl=0.01",
        "--fail-over drop:f1=1%",
        "--fail-under sqnr=20",
        "--fail-over js=0.1",
        "--min-agreement 50",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[quantize]\n", "has no table [eval]"),
        ("eval = 3\n", "'eval' is int; expected a table"),
        ("[eval]\nmetrics = ['sqnr']\n", "unknown option 'metrics' in [eval]; expected one of: labels, metric"),
        ("[eval]\nmetric = 3\n", "Option 'metric' is 3; expected a name or a list of names"),
        ("[eval]\nmetric = ['sqnr', 3]\n", "expected a name or a list of names"),
        ("[eval]\nlabels = 3\n", "Option 'labels' is 3; expected a text"),
        ("[eval]\nlatency = 1\n", "Option 'latency' is 1; expected true or false"),
        ("[eval]\nctc_blank = true\n", "Option 'ctc_blank' is True; expected a whole number"),
        ("[eval]\nmin_agreement = '99'\n", "Option 'min_agreement' is '99'; expected a number"),
        ("[eval]\nmin_agreement = 0.99\n", "--min-agreement is 0.99; expected percent"),
        ("[eval]\nfail_under = 30\n", "Option 'fail_under' is 30; expected a table"),
        ("[eval]\nfail_under = {sqnr = true}\n", "Option 'fail_under' has sqnr = True; expected a number"),
        ("[eval]\nfail_under = {sqrn = 30}\n", "unknown metric 'sqrn'"),
        ("[eval]\nfail_over = {sqnr = 30}\n", "higher is better"),
        ("[eval]\nfail_over = {drop = 0.5}\n", "a drop is in percentage points or percent"),
        ("[eval]\nfail_under = {sqnr = 1}\nfail-under = {sqnr = 2}\n", "gives 'fail_under' twice"),
        ("[eval\n", "is not TOML"),
    ],
)
def test_mistakes(written, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EvalSettings.from_toml(written(text))
    assert message in caught.value.message
    assert "qtool.toml" in caught.value.message
    assert "\n" not in caught.value.message

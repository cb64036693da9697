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
samples = 500
shuffle = 3
batch = 16
threads = 2
checks = ["quick", "saturation"]
layers = true
sensitivity = false
layer-samples = 32
custom_ops = "ops.so"
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "qtool.toml"
        path.write_text(text)
        return path

    return write


def test_all_keys(written, tmp_path) -> None:
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
        samples=500,
        shuffle=3,
        batch=16,
        threads=2,
        checks=("quick", "saturation"),
        layers=True,
        sensitivity=False,
        layer_samples=32,
        custom_ops=(str(tmp_path / "ops.so"),),
    )
    assert settings.batch_size == 16
    assert EvalSettings(batch="auto").batch_size is None
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
        ("[eval]\ncustom_ops = 3\n", "Option 'custom_ops' is 3; expected the path of a library or a list of paths."),
        ("[eval]\ncustom_ops = ['a.so', '']\n", "expected the path of a library or a list of paths."),
        ("[eval]\nlabels = 3\n", "Option 'labels' is 3; expected a text"),
        ("[eval]\nlatency = 1\n", "Option 'latency' is 1; expected true or false"),
        ("[eval]\nctc_blank = true\n", "Option 'ctc_blank' is True; expected a whole number"),
        ("[eval]\nctc_blank = -1\n", "Option 'ctc_blank' is -1; expected a whole number from 0 on"),
        ("[eval]\nsamples = 0\n", "Option 'samples' is 0; expected a whole number from 1 on"),
        ("[eval]\nsamples = 2.5\n", "Option 'samples' is 2.5; expected a whole number from 1 on"),
        ("[eval]\nshuffle = -1\n", "Option 'shuffle' is -1; expected a whole number from 0 on"),
        ("[eval]\nbatch = 'all'\n", "Option 'batch' is 'all'; expected a whole number from 1 on, or 'auto'"),
        ("[eval]\nbatch = 0\n", "Option 'batch' is 0; expected a whole number from 1 on, or 'auto'"),
        ("[eval]\nthreads = true\n", "Option 'threads' is True; expected a whole number from 1 on"),
        ("[eval]\nlayers = 'yes'\n", "Option 'layers' is 'yes'; expected true or false"),
        ("[eval]\nlayer_samples = 0\n", "Option 'layer_samples' is 0; expected a whole number from 1 on"),
        ("[eval]\nchecks = true\n", "Option 'checks' is True; expected a name or a list of names"),
        ("[eval]\nchecks = ['quik']\n", "Option 'checks': There is no check 'quik'; expected quick, all, none or"),
        ("[eval]\nengine = 'orr'\n", "Option 'engine': Unknown engine 'orr'; expected one of ort, spec, spec-avx2"),
        ("[eval]\nmetric = ['sqrn']\n", "Option 'metric' holds 'sqrn'; expected one of: sqnr, cosine"),
        ("[eval]\ndata = 'eval.npz'\n", "unknown option 'data' in [eval]; expected one of: labels, metric"),
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


def test_every_option_of_the_command_has_a_key_or_a_reason() -> None:
    """Data, files to write and how much is said belong to one call."""
    import inspect
    from dataclasses import fields

    from qtool.cli.eval_ import evaluate

    call = {"float_model", "quant_model", "data", "config", "verbose", "quiet", "color"}
    files = {"json_target", "markdown_target", "junit_target", "html_target"}
    assert {*inspect.signature(evaluate).parameters} - call - files == {field.name for field in fields(EvalSettings)}

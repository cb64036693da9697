"""Metrics of the user's own: functions of whole outputs, classes that see batches, and everything that can go wrong."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from qtool.errors import ConfigError
from qtool.evaluate.gates import parse_gate
from qtool.evaluate.metrics import select_metrics
from qtool.evaluate.metrics.custom import load

NUMBER = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module into the working directory; its name is new each time."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        name = f"own_metrics_{next(NUMBER)}"
        (tmp_path / f"{name}.py").write_text(f"import numpy as np\n{text}\n")
        return name

    path = list(sys.path)
    yield write
    assert sys.path == path


def value(name: str, labels: bool = False) -> float | None:
    accumulator = load(name).start()
    for i in range(3):
        x = np.full((2, 2), float(i))
        accumulator.update(x, x + 1, np.array([i, i]) if labels else None, samples=2)
    return accumulator.result()


def test_a_function_sees_everything_at_once(module) -> None:
    name = module(
        "def mean(reference, candidate):\n    assert reference.shape == (6, 2)\n    return np.mean(candidate)"
    )
    assert value(f"{name}:mean") == 2.0
    metric = load(f"{name}:mean")
    assert (metric.name, metric.title, metric.unit, metric.higher_is_better) == (f"{name}:mean", "mean", "", None)
    assert not metric.needs_labels
    assert metric.start().result() is None


def test_labels_are_handed_on(module) -> None:
    name = module(
        "def need(reference, candidate, labels):\n    return float(labels.sum())\n"
        "def may(reference, candidate, labels=None):\n    return -1 if labels is None else int(labels.sum())\n"
        "def other(reference, candidate, power=2):\n    return power"
    )
    assert load(f"{name}:need").needs_labels
    assert not load(f"{name}:may").needs_labels
    assert value(f"{name}:need", labels=True) == 6.0
    assert (value(f"{name}:may"), value(f"{name}:may", labels=True)) == (-1.0, 6.0)
    assert value(f"{name}:other", labels=True) == 2.0
    with pytest.raises(ConfigError, match="compares with labels, and there are none"):
        select_metrics([f"{name}:need"], labels=False)


def test_a_class_sees_one_batch_after_the_other(module) -> None:
    name = module(
        "class Largest:\n    higher_is_better = False\n    unit = 'V'\n    title = 'Largest'\n"
        "    def __init__(self):\n        self.value = None\n"
        "    def update(self, reference, candidate):\n"
        "        assert len(reference) == 2\n        self.value = max(self.value or 0, candidate.max())\n"
        "    def result(self):\n        return self.value"
    )
    assert value(f"{name}:Largest") == 3.0
    metric = load(f"{name}:Largest")
    assert (metric.title, metric.unit, metric.higher_is_better) == ("Largest", "V", False)
    assert parse_gate(f"{name}:Largest=3", over=True).name == f"{name}:Largest"
    with pytest.raises(ConfigError, match="lower is better"):
        parse_gate(f"{name}:Largest=3", over=False)


def test_either_limit_for_an_unknown_direction(module) -> None:
    name = module("def f(reference, candidate):\n    return 1")
    assert parse_gate(f"{name}:f=-3", over=True).over
    assert not parse_gate(f"{name}:f=3", over=False).over


def test_what_it_may_return(module) -> None:
    name = module(
        "def zero(r, c): return np.array(0)\ndef yes(r, c): return np.bool_(True)\ndef none(r, c): return None\n"
        "def nan(r, c): return np.float32('nan')\ndef half(r, c): return np.float16(0.5)"
    )
    assert (value(f"{name}:zero"), value(f"{name}:yes"), value(f"{name}:none")) == (0.0, 1.0, None)
    assert np.isnan(value(f"{name}:nan"))
    assert value(f"{name}:half") == 0.5


@pytest.mark.parametrize(
    ("text", "attribute", "message"),
    [
        ("def f(r, c): return 'good'", "f", "returned str; expected a number, or None"),
        ("def f(r, c): return np.ones(2)", "f", "returned ndarray; expected a number"),
        ("def f(r, c): return 1j", "f", "returned complex"),
        ("def f(r, c): raise ValueError('no\\nway')", "f", "raised ValueError: no"),
        ("def f(r, c): return 1 / 0", "f", "raised ZeroDivisionError: division by zero"),
        ("def f(r): return 1", "f", r"takes \(r\); expected \(reference, candidate\)"),
        ("def f(r, c, l, x): return 1", "f", r"takes \(r, c, l, x\); expected"),
        ("def f(r, c, *, key): return 1", "f", r"takes \(r, c, \*, key\); expected"),
        ("f = 3", "f", "is int; expected a function"),
        ("class f: pass", "f", "is a class without update and result"),
        (
            "class f:\n  def __init__(self, k): pass\n  def update(self, r, c): pass\n  result = update",
            "f",
            "raised TypeError",
        ),
        (
            "class f:\n  def update(self, r, c): raise KeyError(3)\n  def result(self): return 1",
            "f",
            "raised KeyError: 3",
        ),
        ("def f(r, c): return 1\nf.higher_is_better = 'up'", "f", "higher_is_better is 'up'"),
        ("", "g", "has no 'g'"),
        ("import no_such_module_at_all", "f", "cannot be imported: ModuleNotFoundError: No module named 'no_such"),
        ("1 / 0", "f", "raised ZeroDivisionError: division by zero"),
        ("def f(:", "f", "raised SyntaxError"),
    ],
)
def test_mistakes_are_one_line(module, text: str, attribute: str, message: str) -> None:
    name = module(text)
    with pytest.raises(ConfigError, match=message) as caught:
        value(f"{name}:{attribute}")
    assert "\n" not in caught.value.message
    assert f"{name}:{attribute}" in caught.value.message


@pytest.mark.parametrize("name", ["a:", ":b", "a b:c", "a:b:c", "a/b.py:c", "a..b:c"])
def test_names_of_another_form(name: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form module:function"):
        load(name)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="module 'not_there' cannot be imported"):
        load("not_there:f")


def test_outputs_that_cannot_be_joined(module) -> None:
    name = module("def f(r, c): return 1")
    accumulator = load(f"{name}:f").start()
    for length in (2, 3):
        accumulator.update(np.zeros((1, length)), np.zeros((1, length)))
    with pytest.raises(ConfigError, match=r"the shapes \(1, 2\) and \(1, 3\) cannot be joined") as caught:
        accumulator.result()
    assert "class with update and result" in str(caught.value.hint)

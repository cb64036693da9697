"""The JUnit form: a case per gate, and one for what fails without."""

from __future__ import annotations

import io
from xml.etree import ElementTree

from qtool.evaluate.writers import WRITERS
from tests.reports import FAILS, HOLDS, HOSTILE, SHOWN, full, small


def written(report) -> str:
    stream = io.StringIO()
    WRITERS["junit"](report, stream)
    return stream.getvalue()


def test_a_case_per_gate():
    assert (
        written(small(gates=(HOLDS, FAILS)))
        == f"""\
<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="qtool eval" tests="3" failures="1" errors="0" skipped="0">
  <testsuite name="q.onnx against f.onnx" tests="3" failures="1" errors="0" skipped="0">
    <testcase classname="qtool eval q.onnx" name="--fail-under sqnr=20">
      <system-out>sqnr of output 'y' is 24.5 dB.</system-out>
    </testcase>
    <testcase classname="qtool eval q.onnx" name="--fail-over drop=0.5pp">
      <failure message="{FAILS.line}" type="gate">{FAILS.line}</failure>
    </testcase>
    <testcase classname="qtool eval q.onnx" name="checks that need no gate" />
  </testsuite>
</testsuites>
"""
    )


def test_what_fails_without_a_gate_is_a_case_of_its_own():
    root = ElementTree.fromstring(written(small(failures=("y holds NaN", "z holds NaN"))))
    (case,) = root.iter("testcase")
    assert (case.get("name"), root.get("tests"), root.get("failures")) == ("checks that need no gate", "1", "1")
    (failure,) = case
    assert (failure.get("message"), failure.text) == ("y holds NaN", "y holds NaN\nz holds NaN")


def test_a_hostile_name_is_text():
    root = ElementTree.fromstring(written(full(HOSTILE)))
    (failure,) = root.iter("failure")
    assert failure.get("message") == f"drop of output '{SHOWN}' is 1.25 pp, over 0.5 pp."

"""The markdown form: the verdict first, every name in a code span or escaped."""

from __future__ import annotations

import io

import pytest

from qtool.evaluate.writers import WRITERS
from qtool.evaluate.writers import _markdown as md
from tests.reports import FAILS, HOLDS, HOSTILE, full, small


def written(report) -> str:
    stream = io.StringIO()
    WRITERS["markdown"](report, stream)
    return stream.getvalue()


def test_a_small_report():
    assert (
        written(small(gates=(HOLDS, FAILS), notes=("a <note>",), failures=("y holds 3 NaN",)))
        == """\
## ❌ qtool eval: unusable

`q.onnx` against `f.onnx`, 10 samples: **4.00× smaller** (4.0 kB → 1.0 kB).

- ❌ y holds 3 NaN

|  | gate | found |
| :--- | :--- | :--- |
| ✅ | `--fail-under sqnr=20` | sqnr of output 'y' is 24.5 dB. |
| ❌ | `--fail-over drop=0.5pp` | drop of output 'y' is 1.25 pp, over 0.5 pp. |

| output | SQNR (dB) |
| :--- | ---: |
| `y` | 24.50 |

<details><summary>Notes</summary>

- a \\<note\\>

</details>
"""
    )


def test_layers_intervals_and_commands():
    text = written(full())
    assert "| `layer` | Top-1 | 40 | -3.00 pp | -8.00 pp … +1.00 pp |" in text
    assert "| `layer` | MatMul | 50.0 % | 18.0 | 28.0 | rounding | `--exclude layer` |" in text
    assert "| `second` | MatMul | \\<0.1 % | 33.0 | 28.0 | weight | - |" in text
    assert "| `layer` | Conv | 30.25 | +5.75 |" in text
    assert "```sh\n# returns layer to float\nqtool quantize layer --exclude layer\n```" in text
    assert "| ⚠️ | Calibrated ranges | 1 input leaves its range. |" in text
    assert "| `layer` | value of layer leaves the range | `--calib layer` |" in text
    assert "| ➖ | Memory | There is no /proc. |" in text
    assert "**2.00× as fast** (4 → 2 ms, batch 8)" in text


def test_a_hostile_name_breaks_no_table_and_starts_no_tag():
    text = written(full(HOSTILE))
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("<") and "details" not in line] == []
    for line in lines:
        if line.startswith("| ``"):
            assert line.replace("\\|", "").count(" | ") in (2, 3, 4, 6), line
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("a", "`a`"),
        ("a`b", "``a`b``"),
        ("`a``", "``` `a`` ```"),
        ("a|b", "`a\\|b`"),
        ("a\nb", "`a\\nb`"),
        ("", "-"),
        (" ", "-"),
    ],
)
def test_code_spans(text, span):
    assert md.code(text) == span


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("last_hidden_state 0.5 % (a)!", "last_hidden_state 0.5 % (a)!"),
        ("_a_ *b* [c](d) <e> #1 a:b $x$", "\\_a\\_ \\*b\\* \\[c\\](d) \\<e\\> \\#1 a\\:b \\$x\\$"),
        ("@all", "@\u200ball"),
        ("a\r\nb", "a\\\\r\\\\nb"),
    ],
)
def test_text_is_no_markup(text, shown):
    assert md.plain(text) == shown

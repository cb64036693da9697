"""A report or a comparison as strict JSON (RFC 8259), one object.

:mod:`qtool.evaluate.report` says what stands for inf and nan.
"""

from __future__ import annotations

import json
from typing import TextIO

from qtool.evaluate.candidates import Comparison
from qtool.evaluate.report import Report


def write(report: Report | Comparison, stream: TextIO) -> None:
    """Write the report and a final newline."""
    json.dump(report.to_dict(), stream, allow_nan=False, ensure_ascii=False, indent=2)
    stream.write("\n")

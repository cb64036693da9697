"""Check that wide instructions stay inside the functions that dispatch guards.

    python scripts/check_wheel_isa.py qtool/_core.*.so
    python scripts/check_wheel_isa.py dist/qtool-*.whl

The wheel is built for the oldest x86-64; a kernel for a newer one carries its instruction set as the suffix of its name
(``__avx2``, ``__avxvnni``, ``__avx512vnni``, ``__amx_int8``) and runs only where the processor has it. One AVX
instruction in any other function is an illegal instruction on somebody's machine. This disassembles the extension and
prints, for each instruction set, how many functions there are and which instructions they use; it exits with 1 and
names the functions if one uses what its name does not promise, and with 2 if it cannot tell (no objdump, no symbols).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BASELINE = "baseline"
# What a function may use. FMA is not promised by avx2 (cpu.h does not ask for it), and AVX-512F brings its own.
ALLOWED = {
    BASELINE: frozenset[str](),
    "avx2": frozenset({"avx2", "f16c"}),
    "avxvnni": frozenset({"avx2", "f16c", "avxvnni"}),
    "avx512vnni": frozenset({"avx2", "f16c", "fma", "avx512vnni"}),
    "amx_int8": frozenset({"avx2", "f16c", "fma", "avx512vnni", "amx_int8"}),
}
# the compiler adds .part.0, .constprop.1, .isra.2, .cold, ._omp_fn.3
SUFFIX = re.compile(r"__(avx2|avxvnni|avx512vnni|amx_int8)(?=\.|$)")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s+(.*)$")
EVEX_ONLY = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b|\{1to\d+\}|\{r[nduz]-sae\}")
TILE = re.compile(r"%tmm|\b(?:ldtilecfg|sttilecfg|tilerelease)\b")
FMA = re.compile(r"^vfn?m(?:add|sub)")
NOT_VECTOR = re.compile(r"^v(?:err|erw|m[a-z]*call|mlaunch|mresume|mxo|mread|mwrite|mptr|mclear|mrun|msave|mload)")


class UnknownError(Exception):
    """The question cannot be answered here."""


def required(instruction: str) -> str | None:
    """The instruction set that one line of AT&T disassembly needs, or None for the baseline."""
    vex = "{vex}" in instruction
    words = [
        word
        for word in instruction.split("#", maxsplit=1)[0].split()
        if not (word.startswith("{") and word.endswith("}"))
    ]
    name = words[0] if words else ""
    if TILE.search(instruction):
        return "amx_int8"
    if not name.startswith("v") or NOT_VECTOR.match(name):
        masks = name.startswith("k") and "%k" in instruction
        return "avx512vnni" if masks or EVEX_ONLY.search(instruction) else None
    if name.startswith("vpdp"):
        return "avxvnni" if vex else "avx512vnni"
    if EVEX_ONLY.search(instruction):
        return "avx512vnni"
    if FMA.match(name):
        return "fma"
    return "f16c" if name.startswith(("vcvtph2ps", "vcvtps2ph")) else "avx2"


def promised(function: str) -> str:
    """The instruction set that the name of a function promises."""
    found = SUFFIX.findall(function)
    return found[-1] if found else BASELINE


def functions(disassembly: Iterable[str]) -> Iterator[tuple[str, Counter[str], dict[str, str]]]:
    """Each function: its name, how many instructions of each set it has, and the first of each."""
    name, counts, first = "", Counter[str](), dict[str, str]()
    for line in disassembly:
        if start := FUNCTION.match(line):
            if name:
                yield name, counts, first
            name, counts, first = start[1], Counter(), {}
        elif (found := INSTRUCTION.match(line)) and (needs := required(found[1])):
            counts[needs] += 1
            first.setdefault(needs, " ".join(found[1].split()))
    if name:
        yield name, counts, first


def check(library: Path, report: list[str]) -> list[str]:
    """The offences of one shared library, a line each; appends the table to ``report``."""
    disassembly = objdump("-d", "-w", "--no-show-raw-insn", str(library)).splitlines()
    if not any("x86-64" in line for line in disassembly[:5]):
        report.append(f"{library.name}: not for x86-64, nothing to check")
        return []
    if "F .text" not in objdump("-t", str(library)):
        raise UnknownError(f"{library} has no symbols (stripped?); check it before they are removed")
    number: Counter[str] = Counter()
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    offences = []
    for name, counts, first in functions(disassembly):
        isa = promised(name)
        number[isa] += 1
        used[isa].update(counts)
        for needs in sorted(set(counts) - ALLOWED[isa]):
            what = f"{counts[needs]} {needs} instruction(s), the first: {first[needs]}"
            offences.append(f"{library.name}: {name} ({isa}) has {what}")
    report.append(library.name)
    for isa in ALLOWED:
        shown = ", ".join(f"{count} {needs}" for needs, count in sorted(used[isa].items())) or "none"
        report.append(f"  {isa:<11} {number[isa]:>5} functions   wide instructions: {shown}")
    return offences


def objdump(*arguments: str) -> str:
    """Standard output of objdump."""
    tool = shutil.which("objdump")
    if tool is None:
        raise UnknownError("there is no objdump; on Debian: apt-get install binutils")
    done = subprocess.run([tool, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnknownError(f"objdump: {done.stderr.strip()}")
    return done.stdout


def libraries(path: Path, folder: Path) -> list[Path]:
    """The extensions of a wheel, unpacked into ``folder``, or the one given."""
    if path.suffix != ".whl":
        return [path]
    with zipfile.ZipFile(path) as wheel:
        inside = [name for name in wheel.namelist() if re.fullmatch(r"qtool/[^/]+\.(so|pyd)", name)]
        found = [Path(wheel.extract(name, folder)) for name in inside]
    if not found:
        raise UnknownError(f"{path} holds no extension")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="shared libraries or wheels")
    report: list[str] = []
    offences: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for path in parser.parse_args(arguments).paths:
                if not path.is_file():
                    raise UnknownError(f"there is no file {path}")
                for library in libraries(path, Path(folder)):
                    offences += check(library, report)
    except UnknownError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(report))
    for offence in offences:
        print(f"error: {offence}", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())

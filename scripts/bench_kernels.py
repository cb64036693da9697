"""Measure the kernels: all of them against onnxruntime, oneDNN, NumPy and the ceilings of the machine.

    python scripts/bench_kernels.py                     everything, some minutes
    python scripts/bench_kernels.py --quick             a short list, under a minute
    python scripts/bench_kernels.py --gate              what the floors need; exits 1 naming each ratio that falls short
    python scripts/bench_kernels.py --check             at least 10 000 exactness comparisons of each kernel
    python scripts/bench_kernels.py --only 'gemv*' --json out.json

This is ``qtool bench kernels``, with everything instead of the short list as the default; ``--help`` lists the options.
"""

from __future__ import annotations

import sys

from qtool.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["bench", "kernels", "--full", *sys.argv[1:]]))

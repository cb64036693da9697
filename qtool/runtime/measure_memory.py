"""A process of its own that loads a model, runs it, and prints by how much its peak of memory rose.

Not for people: ``evaluate/checks/memory.py`` starts it with a request on stdin and reads the answer from stdout. Linux
counts the peak of a process from the moment its program starts (VmHWM); elsewhere ``ru_maxrss`` is asked, which a
process may inherit from the one that started it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def resident(kind: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at most."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def main() -> None:
    """Answer one request."""
    import numpy as np

    from qtool.runtime import create_session
    from qtool.runtime.custom_ops import register_custom_ops

    request = json.load(sys.stdin)
    with np.load(request["feeds"], allow_pickle=False) as archive:
        feeds = {}
        for at, (name, kind) in enumerate(request["names"]):
            array = archive[f"a{at}"]
            if kind == "text":
                array = array.astype(object)
            elif array.dtype.name != kind:
                import ml_dtypes

                array = array.view(np.dtype(getattr(ml_dtypes, kind)))
            feeds[name] = array
    import onnxruntime  # noqa: F401  before the first look: the library is not part of a model

    for library in request["custom_ops"]:
        register_custom_ops(library)
    before = resident("VmRSS")
    session = create_session(Path(request["model"]), num_threads=request["threads"])
    for _ in range(int(sys.argv[1])):
        session.run(feeds)
    sys.stdout.write(json.dumps({"bytes": max(0, resident("VmHWM") - before)}))


if __name__ == "__main__":
    main()

"""The memory that many small onnxruntime sessions share: one arena of the process, which grows by what is asked for.

An arena keeps what it ever took. Shared, it is that of the largest session instead of the sum of all; but it outlives
them, so whoever is done with them gives it back.
"""

from __future__ import annotations

from functools import cache


@cache
def register_arena() -> None:
    """Give the process the arena that sessions with ``session.use_env_allocators`` use."""
    import onnxruntime as ort

    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    same_as_requested = 1
    # no limit (0), default sizes of the first chunk and of unused ends of chunks (-1)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(0, same_as_requested, -1, -1))


def release_arena() -> None:
    """Give back what no session of the arena uses now; nothing if there is no arena."""
    if register_arena.cache_info().currsize == 0:
        return
    import numpy as np
    import onnx
    import onnxruntime as ort

    # only a run can shrink an arena: that of the smallest model there is
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 13]> g (float x) => (float y) { y = Neg(x) }')
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, {"x": np.zeros((), np.float32)}, run)

"""Speed and exactness of the kernels on this machine: against onnxruntime, oneDNN, NumPy, and what the machine can do.

One file per concern: ``timing`` measures, ``peers`` and ``ceilings`` are what is measured besides qtool, ``cases`` says
what is measured, ``run`` does it, ``gate`` holds the floors, ``report`` the words, and ``check`` compares with
:mod:`qtool.reference`. ``scripts/bench_kernels.py`` and ``qtool bench kernels`` show the same.
"""

"""The ``spec`` engine: whole models by the letter of the ONNX documents, for every element type.

``session.py`` is the face, ``evaluator.py`` walks graphs, ``operators.py`` is the one table of operators that qtool
computes itself: the quantization operators (``quantized.py``) and those float operators that ``onnx.reference``
computes slowly or wrongly (``floats.py``, ``control.py``). Every other operator is that of ``onnx.reference``. To
replace one more, write a function there and add its row to the table.
"""

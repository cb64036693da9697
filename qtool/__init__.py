"""qtool: quantize ONNX models."""

"""Judge: a quantized model beside its float model, in numbers that were measured."""

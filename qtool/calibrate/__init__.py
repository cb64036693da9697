"""Observing a model: samples in, statistics of its tensors out."""

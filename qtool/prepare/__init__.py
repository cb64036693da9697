"""Loading a model and bringing it into the one form that the later stages read: exact float graph surgery only."""

from qtool.prepare.load import ModelSource, describe_source, load_model
from qtool.prepare.prepare import Prepared, SourceNode, prepare

__all__ = ["ModelSource", "Prepared", "SourceNode", "describe_source", "load_model", "prepare"]

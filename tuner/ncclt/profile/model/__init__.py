"""Derive the messages of a training step from a model's shapes, without a run."""

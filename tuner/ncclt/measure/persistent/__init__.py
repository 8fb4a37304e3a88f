"""Measure with ranks that are kept alive from trial to trial."""

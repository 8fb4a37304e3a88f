"""Replay of recorded landscapes: times of real hardware, and launches that are none."""

from ncclt.measure.replay.landscape import Landscape, load_landscape
from ncclt.measure.replay.runner import ReplayRunner

__all__ = ["Landscape", "ReplayRunner", "load_landscape"]

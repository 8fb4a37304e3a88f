"""Runners that need no GPU: a simulated cluster, and the replay of recorded measurements."""

from ncclt.measure.simulated.landscape import Landscape, load_landscape
from ncclt.measure.simulated.noise import NO_FAULTS, Faults
from ncclt.measure.simulated.runner import ReplayRunner, SimulatedRunner

__all__ = ["NO_FAULTS", "Faults", "Landscape", "ReplayRunner", "SimulatedRunner", "load_landscape"]

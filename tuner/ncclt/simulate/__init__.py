"""Runners that need no GPU: a cluster made of mechanisms, and the replay of recorded measurements."""

from ncclt.simulate.faults import NO_FAULTS, Faults
from ncclt.simulate.landscape import Landscape, load_landscape
from ncclt.simulate.replay import ReplayRunner
from ncclt.simulate.runner import SimulatedRunner

__all__ = ["NO_FAULTS", "Faults", "Landscape", "ReplayRunner", "SimulatedRunner", "load_landscape"]

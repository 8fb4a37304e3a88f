"""Communication that compute does not hide, from the kernels of a Kineto trace.

Kernels are fed one by one while a trace is read, so that none of their events must be kept: 16 bytes remain of each.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from ncclt.profile.other_libraries import COPIES_BETWEEN_GPUS, is_nccl_kernel, other_library
from ncclt.profile.views.exposure import Interval, intersect, measure_exposure, merge_intervals, total_us

NO_KERNELS = "exposed communication unknown: no GPU kernels recorded"
NO_COMMUNICATION = "exposed communication unknown: no NCCL kernel recorded in the training steps"
NO_COMPUTE = "exposed communication unknown: no compute kernel recorded"
NO_NCCL_PART = "exposed communication unknown: compute hides NCCL's part while another library communicates"
_BY_CPU_STEPS = "exposed communication: kernels are counted from the start to the end of each step on the CPU"


class RankExposure(NamedTuple):
    """Communication and its exposed part on one rank, per step.

    Attributes:
        communication_us: time in which it communicated, µs of the median step; None where not known.
        exposed_us: the part of it without compute beside it, likewise; None where not known.
        copied_us: copies within the GPU, µs per step; None where not known.
        note: what is missing or was assumed, empty where there is nothing to say.
    """

    communication_us: float | None = None
    exposed_us: float | None = None
    copied_us: float | None = None
    note: str = ""


@dataclass(slots=True, kw_only=True)
class _Device:
    """Start and end of the kernels of one GPU, µs, alternating."""

    communication: array[float] = field(default_factory=lambda: array("d"))
    compute: array[float] = field(default_factory=lambda: array("d"))
    others: array[float] = field(default_factory=lambda: array("d"))
    copies: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True, kw_only=True)
class KernelTimeline:
    """Collects when the kernels of one rank ran.

    Attributes:
        libraries: library that communicates without NCCL -> its kernels.
    """

    libraries: Counter[str] = field(default_factory=Counter)
    _devices: defaultdict[str, _Device] = field(default_factory=lambda: defaultdict(_Device))
    _steps: dict[int, Interval] = field(default_factory=dict)

    def add_kernel(self, name: str, start_us: float, duration_us: float, device: str = "") -> None:
        """Note a kernel; copies and memory sets are no kernels, and what hides behind them counts as exposed.

        Args:
            name: as recorded; it decides between NCCL, other libraries that communicate, and compute.
            start_us, duration_us: on the trace's clock; what is not finite or not above 0 long is ignored.
            device: distinguishes the GPUs of one process (`pid` of the event).
        """
        library = other_library(name)
        if library:
            self.libraries[library] += 1
        if _has_length(start_us, duration_us):
            ran = self._devices[device]
            times = ran.others if library else ran.communication if is_nccl_kernel(name) else ran.compute
            times.extend((start_us, start_us + duration_us))

    def add_copy(self, start_us: float, duration_us: float, device: str = "", *, leaves_gpu: bool = False) -> None:
        """Note a copy from a GPU's memory to the same memory, or to another GPU's; arguments as in `add_kernel`."""
        if leaves_gpu:
            self.libraries[COPIES_BETWEEN_GPUS] += 1
        if _has_length(start_us, duration_us):
            ran = self._devices[device]
            (ran.others if leaves_gpu else ran.copies).extend((start_us, start_us + duration_us))

    @property
    def others_us(self) -> float:
        """Return the communication time of other libraries on the busiest GPU, µs."""
        return max((total_us(merge_intervals(_pairs(device.others))) for device in self._devices.values()), default=0.0)

    def add_gpu_step(self, number: int, start_us: float, duration_us: float) -> None:
        """Note a `ProfilerStep#` range on the GPU's own time line (category `gpu_user_annotation`)."""
        if _has_length(start_us, duration_us):
            self._steps.setdefault(number, (start_us, start_us + duration_us))

    def exposure(self, steps: Sequence[tuple[int, Interval]]) -> RankExposure:
        """Return the exposed communication of a step, the median of all steps as for their times.

        Of several GPUs the least exposed one counts, see `least_exposed`. The communication of other libraries is
        neither NCCL's nor does it hide any: where NCCL's part is 0 beside it, the exposed communication is not known.

        Args:
            steps: number and range on the CPU's clock of every complete step; empty = the file counts as one step.
                Ranges on the GPU's time line are taken instead where all these steps have one, for kernels run behind
                the CPU, by which the last step would lose its tail. A range there holds what the thread of the step
                launched, which is not the backward pass: one that holds less communication than the CPU's is not used.
        """
        if not any(device.communication or device.compute for device in self._devices.values()):
            return RankExposure(note=NO_KERNELS)
        windows = [interval for _, interval in steps]
        least, note = self._find_least(windows), _BY_CPU_STEPS if steps else ""
        if steps and all(number in self._steps for number, _ in steps):
            on_gpu = self._find_least([self._steps[number] for number, _ in steps])
            if least is None or (on_gpu is not None and on_gpu[0] >= least[0]):
                least, note = on_gpu, ""
        if least is None:
            alone = any(device.communication and not device.compute for device in self._devices.values())
            return RankExposure(note=NO_COMPUTE if alone else NO_COMMUNICATION)
        communication_us, exposed_us = least
        copied_us = max(
            total_us(intersect(merge_intervals(_pairs(device.copies)), merge_intervals(windows)))
            for device in self._devices.values()
        )
        copied_per_step_us = copied_us / len(steps) if steps and copied_us else None
        if exposed_us > 0 or not self.libraries:
            return RankExposure(communication_us, exposed_us, copied_per_step_us, note)
        return RankExposure(communication_us, None, copied_per_step_us, NO_NCCL_PART)

    def _find_least(self, windows: Sequence[Interval]) -> tuple[float, float] | None:
        """Return the communication of the median step of the least exposed GPU and its exposed part, µs.

        None where no GPU both communicates and computes.
        """
        medians = [
            (median(sent_us for sent_us, _ in steps), median(exposed_us for _, exposed_us in steps))
            for device in self._devices.values()
            if device.compute or device.others
            for steps in [measure_exposure(_pairs(device.communication), _pairs(device.compute), windows)]
            if any(sent_us for sent_us, _ in steps)
        ]
        return min(medians, key=lambda times_us: times_us[1], default=None)


def least_exposed(ranks: Iterable[RankExposure]) -> tuple[float | None, tuple[str, ...]]:
    """Return the exposed communication of the least exposed rank, µs per step, and the notes of all.

    All ranks wait for each other, so a step takes the same time on each of them, and without communication none can
    be faster than its own compute: the smallest exposed part bounds the gain. A rank that comes early waits inside
    the kernel for the last one, which no NCCL setting changes either.
    """
    exposures = tuple(ranks)
    times_us = [rank.exposed_us for rank in exposures if rank.exposed_us is not None]
    return min(times_us, default=None), tuple(dict.fromkeys(rank.note for rank in exposures if rank.note))


def mean_exposure(cycles: Sequence[tuple[RankExposure, int]]) -> RankExposure:
    """Return the mean over several recordings of one rank, each with its steps; None where one of them lacks a time."""

    def mean(times_us: Sequence[float | None]) -> float | None:
        known = [(time_us, steps) for time_us, (_, steps) in zip(times_us, cycles, strict=True) if time_us is not None]
        total_steps = sum(steps for _, steps in known)
        return sum(us * steps for us, steps in known) / total_steps if len(known) == len(cycles) else None

    communication_us, exposed_us, copied_us, _notes = zip(*(exposure for exposure, _ in cycles), strict=True)
    return RankExposure(mean(communication_us), mean(exposed_us), mean(copied_us))


def _has_length(start_us: float, duration_us: float) -> bool:
    return duration_us > 0 and math.isfinite(start_us + duration_us)


def _pairs(flat: array[float]) -> Iterator[Interval]:
    return zip(flat[::2], flat[1::2], strict=True)

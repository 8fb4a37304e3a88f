"""The table of what could be changed in a job, from its profile, its cluster and the times of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.workload import MessageCalls, Workload
from ncclt.errors import InputError, UsageError
from ncclt.profile.advice.call_times import Factors, call_times
from ncclt.profile.advice.changes import Ddp, Fsdp
from ncclt.profile.advice.job import LIKELY, AdvisedChange, Prediction, TrainingJob
from ncclt.profile.advice.step_model import Backward, find_backward, gpu_figures
from ncclt.profile.views.estimate import Curve, CurveKey

_OTHER_SHARE = 0.1
"""Of the bytes of gradients: more all_reduces than this in another group, and it is not clear which are gradients."""

_FOREIGN = {"horovod": "Horovod", "megatron_log": "Megatron-LM", "deepspeed": "DeepSpeed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Candidate changes to a job, with predictions.

    Attributes:
        job: as it is.
        as_is: its step: recorded, or predicted from its compute.
        model_us: the step as the model sees it, µs; the difference to the recorded one is what it misses.
        sharding: `DDP` or `FSDP`, as the messages look.
        changes: the shortest step first, then those without a prediction.
        notes: what was assumed, one sentence each.
    """

    job: TrainingJob
    as_is: Prediction
    model_us: float
    sharding: str
    changes: tuple[AdvisedChange, ...]
    notes: tuple[str, ...]

    @property
    def exposed_us(self) -> float:
        """Return the exposed communication of a step, µs: the most that any NCCL setting can gain."""
        return max(0.0, self.as_is.step_us - self.job.compute_us)


def advise(
    workload: Workload,
    cluster: Cluster,
    *,
    measured: Mapping[CurveKey, Curve],
    step_us: float | None = None,
    compute_us: float | None = None,
    others: Iterable[Cluster] = (),
) -> Advice:
    """Predict what other buckets, hooks, sharding and numbers of nodes do to a step.

    Args:
        workload: recorded or computed.
        cluster: where it was recorded, or is to run, sized to the job.
        measured: curves of the NCCL default on the cluster, for any number of its nodes.
        step_us: time of a step, µs; None = that of the profile.
        compute_us: its part without exposed communication, µs; None = that of the profile.

    Raises:
        UsageError: the time of a step is not known, or the times contradict each other.
    """
    if cluster.world_size < 2:
        raise UsageError("a job of one GPU sends nothing", hint="give --nodes or --gpus-per-node")
    step_us, compute_us = _find_times(workload, step_us, compute_us)
    job = TrainingJob(
        workload=workload,
        cluster=cluster,
        times=call_times(workload, cluster, measured),
        compute_us=compute_us,
        step_us=step_us,
    )
    model, job, notes = _choose_model(job)
    if step_us is not None and not job.times.factors:
        model, job = _calibrate(job)
        notes.append("no recorded times of calls: all are scaled to explain the exposed communication")
    if not job.times.factors and not measured:
        notes.append("no measured or recorded times of calls: using NCCL's cost model with nominal links")
    if gpu_figures(cluster.gpu) is None:
        notes.append(f"memory bandwidth of {cluster.gpu} unknown: assuming 1,000 GB/s for casts and copies")
    if job.traced is None:
        notes.append(
            "backward pass not recorded: assuming two thirds of forward and backward, gradients at an even pace"
        )
    changes = [
        replace(change, prediction=job.predict(change.modelled, model.as_is)) if change.modelled else change
        for change in model.changes(others)
    ]
    as_is = job.predict(model.as_is, model.as_is)
    return Advice(
        job=job,
        as_is=as_is,
        model_us=model.as_is(LIKELY, False),
        sharding=type(model).__name__.upper(),
        changes=tuple(sorted(changes, key=lambda c: c.prediction.step_us if c.prediction else math.inf)),
        notes=tuple(notes),
    )


def _find_times(workload: Workload, step_us: float | None, compute_us: float | None) -> tuple[float | None, float]:
    """Return the step, None where only its compute is known, and its compute, µs."""
    for name, value in (("--step-ms", step_us), ("--compute-ms", compute_us)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{name} must be above 0, not {value / 1e3:g}")
    if workload.provenance.whole_file:
        raise UsageError(
            f"{workload.name} has no known number of steps",
            hint="import it again with `ncclt profile import --steps N`",
        )
    step_us = step_us or workload.step_time_us
    if compute_us is None and step_us is not None and workload.exposed_us is not None:
        compute_us = step_us - workload.exposed_us
    if compute_us is None:
        lacks = "the step time" if step_us is None else "the exposed communication per step"
        raise UsageError(
            f"{workload.name} lacks {lacks}",
            hint="record it on the GPUs: ncclt profile record --name NAME -- torchrun ... train.py; or give --step-ms "
            "and --compute-ms (the step on one GPU)",
        )
    if not compute_us > 0 or (step_us is not None and compute_us > step_us):
        raise UsageError(
            f"a step of {(step_us or 0) / 1e3:g} ms cannot hold {compute_us / 1e3:g} ms of compute",
            hint="--compute-ms is the part of --step-ms without exposed communication",
        )
    return step_us, compute_us


def _choose_model(job: TrainingJob) -> tuple[Ddp | Fsdp, TrainingJob, list[str]]:
    """Return the model that the messages look like, the job with what its timeline shows, and notes."""
    workload = job.workload
    detail = workload.provenance.detail
    foreign = _FOREIGN.get(workload.provenance.source) or ("Horovod" if "Horovod" in detail.get("sharding", "") else "")
    if foreign:
        raise UsageError(f"{workload.name} is a job of {foreign}: only DDP and FSDP of PyTorch are modelled")
    whole = (0, workload.provenance.world_size, job.cluster.world_size)

    def of(collective: Collective) -> list[MessageCalls]:
        found = (c for c in workload.messages if c.message.collective is collective and "float" in c.message.dtype)
        return [calls for calls in found if calls.message.group_size in whole]

    reduced, gathered, scattered = map(of, (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER))
    in_all, in_parts = _bytes(reduced), _bytes(scattered)
    if gathered and in_parts > in_all:
        notes = ["assuming FSDP: one group gathers parameters and reduce-scatters gradients"]
        return Fsdp(job, gathered, scattered), job, notes
    smaller = [c for c in workload.messages if c.message.collective is Collective.ALL_REDUCE and c not in reduced]
    if not in_all or _bytes(c for c in smaller if "float" in c.message.dtype) > _OTHER_SHARE * in_all:
        raise InputError(
            f"{workload.name} looks neither like DDP nor like FSDP",
            hint="its gradients look like other messages; tensor and pipeline parallelism are not modelled",
        )
    order, traced = _order_buckets(job, reduced)
    job = replace(job, traced=traced)
    return Ddp(job, reduced, order), job, ["assuming DDP: the all_reduces of the whole job carry its gradients"]


def _order_buckets(job: TrainingJob, gradients: Sequence[MessageCalls]) -> tuple[list[int], Backward | None]:
    """Return the bytes of the buckets in the order of the backward pass, and the pass where the timeline shows it.

    Without a timeline the smallest is first, as DDP's first bucket is, and the largest last: often an embedding.
    """
    messages = {calls.message for calls in gradients}
    timeline = [call for call in job.workload.timeline if call.message in messages]
    sent = sum(call.message.size_bytes for call in timeline)
    if timeline and abs(sent / _bytes(gradients) - 1) < 0.1 and job.step_us is not None:
        traced = find_backward(timeline, exposed_us=job.step_us - job.compute_us, compute_us=job.compute_us)
        return [call.message.size_bytes for call in timeline], traced
    sizes = (calls.message.size_bytes for calls in gradients for _ in range(max(1, round(calls.calls_per_step))))
    return sorted(sizes), None


def _calibrate(job: TrainingJob) -> tuple[Ddp | Fsdp, TrainingJob]:
    """Return model and job with times of calls scaled so that the modelled step is the recorded one, if that can be.

    The step grows with the scale, so halving an interval finds it: 1/64 to 64.
    """

    def scaled(log2: float) -> tuple[Ddp | Fsdp, TrainingJob]:
        factors: dict[Collective, Factors] = {}
        for calls in job.workload.messages:
            found = factors.get(calls.message.collective, ())
            size = math.log2(calls.message.size_bytes)
            factors[calls.message.collective] = tuple(sorted({*found, (size, 2.0**log2)}))
        after, job_after, _ = _choose_model(replace(job, times=replace(job.times, factors=factors)))
        return after, job_after

    low, high = -6.0, 6.0
    for _ in range(30):
        middle = (low + high) / 2
        if scaled(middle)[0].as_is(LIKELY, False) < (job.step_us or 0.0):
            low = middle
        else:
            high = middle
    # A step without exposed communication says nothing of the calls but that they are no longer than this.
    return scaled(min(low, 0.0) if job.step_us == job.compute_us else low)


def _bytes(calls: Iterable[MessageCalls]) -> float:
    return sum(one.bytes_per_step for one in calls)

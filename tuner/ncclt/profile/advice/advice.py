"""The table of what could be changed in a job, from its profile, its cluster and the times of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclt.core.cluster import Cluster
from ncclt.core.duration import format_duration
from ncclt.core.message import Collective
from ncclt.core.workload import MessageCalls, Workload
from ncclt.errors import InputError, UsageError
from ncclt.profile.advice.changes import Ddp, Fsdp
from ncclt.profile.advice.job import LIKELY, RECORDING, AdvisedChange, Factors, Prediction, TrainingJob, call_times
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
        as_is: its step: recorded or given, or predicted from its compute.
        model_us: the step as the model sees it, µs; the difference to the recorded one is what it misses.
        exposed_us: exposed communication of a step, µs: the most that any NCCL setting can gain.
        sharding: `DDP` or `FSDP`, as the messages look.
        changes: the shortest step first, then those without a prediction.
        notes: what was assumed, one sentence each.
    """

    job: TrainingJob
    as_is: Prediction
    model_us: float
    exposed_us: float
    sharding: str
    changes: tuple[AdvisedChange, ...]
    notes: tuple[str, ...]


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

    On a named cluster, call times come from studies of it or from NCCL's cost model. The step is predicted from them
    unless it is given, since a recorded step counts on the recorded GPUs only.

    Args:
        workload: recorded or computed.
        cluster: where it is to run, sized to the job, or `recorded_cluster(workload)`.
        measured: curves of the NCCL default on the cluster, for any number of its nodes.
        step_us: time of a step on the cluster, µs: the job ran there, and recorded calls are of there too; None =
            recorded on its own cluster, predicted on a named one.
        compute_us: its part without exposed communication, µs; None = that of the profile.

    Raises:
        UsageError: the time of a step is not known, or the times contradict each other.
    """
    if cluster.world_size < 2:
        raise UsageError("a job of one GPU sends nothing", hint="give --nodes or --gpus-per-node")
    compute_us = _find_compute(workload, step_us, compute_us)
    if step_us is None and cluster.name == RECORDING:
        step_us = workload.step_time_us
    job = TrainingJob(
        workload=workload,
        cluster=cluster,
        times=call_times(workload, cluster, measured, ran_there=step_us is not None),
        compute_us=compute_us,
        step_us=step_us,
    )
    model, notes = _choose_model(job)
    notes += _describe_assumptions(model.job)
    if step_us is not None and not job.times.factors:
        model = _scale_to_step(job, step_us)
        notes.append("no recorded times of calls: all are scaled to explain the exposed communication")
    changes = [_predict(model, change) for change in model.changes(others)]
    # The other way of sharding has other collectives, which the job's own times say nothing about.
    plain = job if cluster.name == RECORDING else replace(job, times=replace(job.times, factors={}))
    plain_model, _ = _choose_model(plain)
    step_model_us = model.as_is(LIKELY, False)
    resharded = _predict(plain_model, plain_model.change_sharding())
    if step_us is not None:
        # No more than the job's own messages take of its step.
        resharded = _limit_gain(resharded, step_us - (step_model_us - model.as_is(LIKELY, True)))
    return Advice(
        job=model.job,
        as_is=model.job.predict(model.as_is, model.as_is),
        model_us=step_model_us,
        exposed_us=_find_exposed(model, step_model_us),
        sharding=type(model).__name__.upper(),
        changes=tuple(sorted([*changes, resharded], key=lambda c: c.prediction.step_us if c.prediction else math.inf)),
        notes=tuple(notes),
    )


def _limit_gain(change: AdvisedChange, least_us: float) -> AdvisedChange:
    """Return a change whose step takes no less than a time."""
    if (prediction := change.prediction) is None:
        return change
    step_us, high_us = max(least_us, prediction.step_us), max(least_us, prediction.high_us)
    return replace(change, prediction=replace(prediction, step_us=step_us, high_us=high_us))


def _predict(model: Ddp | Fsdp, change: AdvisedChange) -> AdvisedChange:
    if change.modelled is None:
        return change
    return replace(change, prediction=model.job.predict(change.modelled, model.as_is))


def _find_exposed(model: Ddp | Fsdp, step_model_us: float) -> float:
    """Return the exposed communication, µs: of the measured step if there is one, else of the model."""
    job = model.job
    if job.step_us is not None:
        return max(0.0, job.step_us - job.compute_us)
    ranks = (0, job.workload.provenance.world_size, job.cluster.world_size)
    sent_us = sum(
        calls.calls_per_step * job.times.time_us(calls.message.collective, calls.message.size_bytes)
        for calls in job.workload.messages
        if calls.message.group_size in ranks
    )
    return max(0.0, min(sent_us, step_model_us - model.as_is(LIKELY, True)))


def _describe_assumptions(job: TrainingJob) -> list[str]:
    notes, recorded_us = [], job.workload.step_time_us
    if job.step_us is None and recorded_us is not None:
        notes.append(
            f"predicting the step on {job.cluster.name} from the recorded compute; if the recorded step of "
            f"{format_duration(recorded_us)} ran there, add --step-ms {recorded_us / 1e3:.4g}"
        )
    if not job.times.factors and not job.times.measured:
        notes.append("no measured or recorded times of calls: using NCCL's cost model with nominal links")
    if gpu_figures(job.cluster.gpu) is None:
        notes.append(f"memory bandwidth of {job.cluster.gpu} unknown: assuming 1,000 GB/s for casts and copies")
    if job.traced is None:
        notes.append(
            "backward pass not recorded: assuming two thirds of forward and backward, gradients at an even pace"
        )
    return notes


def _find_compute(workload: Workload, step_us: float | None, compute_us: float | None) -> float:
    """Return the compute of a step, µs."""
    for name, value in (("--step-ms", step_us), ("--compute-ms", compute_us)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{name} must be above 0, not {value / 1e3:g}")
    if workload.provenance.whole_file:
        hint = "import it again with `ncclt profile import --steps N`"
        raise UsageError(f"{workload.name} has no known number of steps", hint=hint)
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
    return compute_us


def _choose_model(job: TrainingJob) -> tuple[Ddp | Fsdp, list[str]]:
    """Return the model that the messages look like, of the job with what its timeline shows, and notes."""
    workload = job.workload
    detail = workload.provenance.detail
    foreign = _FOREIGN.get(workload.provenance.source) or ("Horovod" if "Horovod" in detail.get("sharding", "") else "")
    if foreign:
        raise UsageError(f"{workload.name} is a job of {foreign}: only DDP and FSDP of PyTorch are modelled")
    ranks = (0, workload.provenance.world_size, job.cluster.world_size)

    def find_calls(collective: Collective) -> list[MessageCalls]:
        floats = (c for c in workload.messages if c.message.collective is collective and "float" in c.message.dtype)
        return [calls for calls in floats if calls.message.group_size in ranks]

    reduced, gathered, scattered = map(
        find_calls, (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    if gathered and _sum_bytes(scattered) > _sum_bytes(reduced):
        return Fsdp(job, gathered, scattered), [
            "assuming FSDP: one group gathers parameters and reduce-scatters gradients"
        ]
    smaller = [c for c in workload.messages if c.message.collective is Collective.ALL_REDUCE and c not in reduced]
    in_parts = _sum_bytes(c for c in smaller if "float" in c.message.dtype)
    if not reduced or in_parts > _OTHER_SHARE * _sum_bytes(reduced):
        hint = "its gradients look like other messages; tensor and pipeline parallelism are not modelled"
        raise InputError(f"{workload.name} looks neither like DDP nor like FSDP", hint=hint)
    order, traced = _order_buckets(job, reduced)
    notes = ["assuming DDP: the all_reduces of the whole job carry its gradients"]
    return Ddp(replace(job, traced=traced), reduced, order), notes


def _order_buckets(job: TrainingJob, gradients: Sequence[MessageCalls]) -> tuple[list[int], Backward | None]:
    """Return the bytes of the buckets in the order of the backward pass, and the pass where the timeline shows it.

    Without a timeline the smallest is first, as DDP's first bucket is, and the largest last: often an embedding.
    """
    messages = {calls.message for calls in gradients}
    timeline = [call for call in job.workload.timeline if call.message in messages]
    sent = sum(call.message.size_bytes for call in timeline)
    recorded_us = job.workload.step_time_us or job.step_us
    if timeline and abs(sent / _sum_bytes(gradients) - 1) < 0.1 and recorded_us is not None:
        exposed_us = max(0.0, recorded_us - job.compute_us)
        traced = find_backward(timeline, exposed_us=exposed_us, compute_us=job.compute_us)
        return [call.message.size_bytes for call in timeline], traced
    sizes = (calls.message.size_bytes for calls in gradients for _ in range(max(1, round(calls.calls_per_step))))
    return sorted(sizes), None


def _scale_to_step(job: TrainingJob, step_us: float) -> Ddp | Fsdp:
    """Return the model with the times of the job's own collectives scaled so that its step is the known one.

    The step grows with the scale, so halving an interval finds it: 1/64 to 64. Other collectives keep their times.
    """

    def scale(log2: float) -> Ddp | Fsdp:
        factors: dict[Collective, Factors] = {}
        for message in (calls.message for calls in job.workload.messages):
            others = factors.get(message.collective, ())
            factors[message.collective] = tuple(sorted({*others, (math.log2(message.size_bytes), 2.0**log2)}))
        return _choose_model(replace(job, times=replace(job.times, factors=factors)))[0]

    low, high = -6.0, 6.0
    for _ in range(30):
        middle = (low + high) / 2
        if scale(middle).as_is(LIKELY, False) < step_us:
            low = middle
        else:
            high = middle
    # A step without exposed communication says nothing of the calls but that they are no longer than this.
    return scale(min(low, 0.0) if step_us == job.compute_us else low)


def _sum_bytes(calls: Iterable[MessageCalls]) -> float:
    return sum(message.bytes_per_step for message in calls)

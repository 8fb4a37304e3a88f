"""Changes to a job under FullyShardedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ncclt.core.cluster import Cluster
from ncclt.core.message import DTYPE_SIZES, Collective, format_bytes
from ncclt.core.plural import count_noun
from ncclt.core.workload import MessageCalls
from ncclt.profile.advice.ddp import ACCUMULATED
from ncclt.profile.advice.job import AdvisedChange, Assumption, TrainingJob
from ncclt.profile.advice.step_model import GradientBucket, Unit, ddp_us, fsdp_us, slowdown_beside

_ADAM_STATE_BYTES = 16
"""Parameter, gradient and two moments in float32, per parameter."""


class Fsdp:
    """The gathers and reductions of a sharded job, and what else they could be."""

    def __init__(self, job: TrainingJob, gathers: Sequence[MessageCalls], reduces: Sequence[MessageCalls]) -> None:
        """Take the job, its all_gathers and its reduce_scatters; one reduce_scatter is one unit."""
        self.job = job
        heaviest = max(reduces, key=lambda calls: calls.bytes_per_step).message
        self.reduce_dtype, self.width = heaviest.dtype, DTYPE_SIZES[heaviest.dtype]
        self.elements = tuple(
            calls.message.size_bytes / DTYPE_SIZES[calls.message.dtype]
            for calls in reduces
            for _ in range(max(1, round(calls.calls_per_step)))
        )
        self.gather_width = DTYPE_SIZES[max(gathers, key=lambda calls: calls.bytes_per_step).message.dtype]
        gathered = sum(calls.bytes_per_step for calls in gathers) / self.gather_width
        self.parameters = sum(self.elements)
        self.gathers_again = gathered > 1.5 * self.parameters

    def step_us(
        self, where: Cluster, width: float, gathers_again: bool, reduces: bool, assumed: Assumption, free: bool
    ) -> float:
        """Return the modelled step, µs; `width` is the bytes of a reduced gradient."""
        job, call = self.job, partial(self.job.call_us, assumed=assumed, where=where)
        units = [
            Unit(
                gather_us=0.0 if free else call(Collective.ALL_GATHER, n * self.gather_width),
                reduce_us=0.0 if free or not reduces else call(Collective.REDUCE_SCATTER, n * width),
            )
            for n in self.elements
        ]
        compute = job.sharded_compute(self.parameters / job.cluster.world_size, assumed)
        step_us = fsdp_us(units, compute, gathers_again=gathers_again, stretch=assumed.stretch)
        return step_us + job.waiting_us(assumed, where)

    def as_is(self, assumed: Assumption, free: bool) -> float:
        """Return the modelled step of the job as it is, µs."""
        return self._with()(assumed, free)

    def changes(self, others: Iterable[Cluster]) -> Iterator[AdvisedChange]:
        """Yield everything to try; `others` are other numbers of nodes."""
        unreduced = self._with(reduces=False)
        if self.gathers_again:
            yield AdvisedChange(
                name="parameters kept after the forward pass",
                code="fully_shard(block, reshard_after_forward=False)",
                modelled=self._with(gathers_again=False),
                why="in the backward pass each GPU holds all parameters, "
                f"{format_bytes(round(self.parameters * self.gather_width))}",
            )
        if self.width > 2:
            yield AdvisedChange(
                name="gradients reduced in bf16",
                code="from torch.distributed.fsdp import MixedPrecisionPolicy; fully_shard(block, "
                "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))",
                modelled=self._with(width=2.0),
                lossy=True,
            )
        else:
            yield AdvisedChange(name="gradients reduced in bf16", why=f"they are in {self.reduce_dtype} already")
        yield AdvisedChange(
            name=f"gradient accumulation over {ACCUMULATED}",
            code="model.set_requires_gradient_sync(False)    # True before the last micro-batch's backward()",
            modelled=lambda assumed, free: (
                (self.as_is(assumed, free) + (ACCUMULATED - 1) * unreduced(assumed, free)) / ACCUMULATED
            ),
            why="time per micro-batch; unsharded gradients take "
            f"{format_bytes(round(self.parameters * self.width))} on each GPU; {ACCUMULATED}x the batch per "
            "optimizer step",
        )
        yield AdvisedChange(
            name="DDP instead of FSDP",
            code="DDP(model)",
            modelled=self._unsharded,
            why=f"needs {format_bytes(round(self.parameters * _ADAM_STATE_BYTES))} of parameters, gradients and Adam's "
            "moments on one GPU, plus activations",
        )
        for where in others:
            yield AdvisedChange(
                name=f"{count_noun(where.nodes, 'node')} x {where.gpus_per_node} GPUs",
                code=f"torchrun --nnodes={where.nodes} --nproc-per-node={where.gpus_per_node} ...",
                modelled=self._with(where=where),
                why=f"same batch per GPU, {where.world_size / self.job.cluster.world_size:g}x the global batch",
            )
        yield AdvisedChange(
            name="bucket_cap_mb, compression hooks, gradient_as_bucket_view, static_graph",
            why="options of DDP; this job is sharded",
        )

    def _with(
        self, *, where: Cluster | None = None, width: float = 0.0, gathers_again: bool = True, reduces: bool = True
    ) -> partial[float]:
        again = self.gathers_again and gathers_again
        return partial(self.step_us, where or self.job.cluster, width or self.width, again, reduces)

    def _unsharded(self, assumed: Assumption, free: bool) -> float:
        job, bytes_ = self.job, self.parameters * self.width
        backward = job.backward(self.parameters, assumed)
        count = max(1, round(bytes_ / (25 * 2**20)))
        call_us = 0.0 if free else job.call_us(Collective.ALL_REDUCE, bytes_ / count, assumed, job.cluster)
        buckets = [GradientBucket(bytes=bytes_ / count, call_us=call_us)] * count
        front_us = job.compute_us - backward.length_us
        slowdown = slowdown_beside(job.cluster, round(bytes_ / count))
        step_us = ddp_us(buckets, backward, front_us=front_us, slowdown=slowdown, stretch=assumed.stretch)
        return step_us + job.waiting_us(assumed, job.cluster)

"""Changes to a job under DistributedDataParallel, and to one under FullyShardedDataParallel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

from ncclt.core.cluster import Cluster
from ncclt.core.message import DTYPE_SIZES, Collective, format_bytes
from ncclt.core.plural import count_noun
from ncclt.core.workload import MessageCalls
from ncclt.errors import MissingDependencyError
from ncclt.profile.advice.job import LIKELY, AdvisedChange, Assumption, Modelled, TrainingJob
from ncclt.profile.advice.step_model import GradientBucket, Unit, ddp_us, fsdp_us, slowdown_beside
from ncclt.profile.model.workload import FIRST_BUCKET_MB, ddp_buckets

_MIB = 2**20
_CAPS_MB = (10, 25, 50, 100, 250, 500)
_FIRST_MB = (4, 8, 25)
_DEFAULT_CAP_MB = 25

_PIECE_BYTES = 4 * _MIB
"""Tensors are not recorded: a bucket is taken to be made of pieces of this size, a common weight matrix."""

_ACCUMULATED = 4
"""Micro-batches per optimizer step in the row on gradient accumulation."""

_ACCUMULATION = f"gradient accumulation over {_ACCUMULATED}"

_CAST = (2.5, 1.5)
"""Bytes that PyTorch's bf16 and fp16 hooks touch per byte of float32 gradients, before and after the call: cast (4
read, 2 written per element) and division by the world size (2, 2), then the way back (2, 4); default_hooks.py there."""

_POWER_SGD = 11.0
"""The same of PowerSGD: error added (3), copy kept (2), two products with the gradients (2), their approximation
written (1), new error (3); torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py."""

_POWER_SGD_TENSOR_US = 50.0
"""Orthogonalisation and small kernels per matrix at worst: about ten launches of 5 µs."""

BUCKET_COPY = (2.0, 4.0)
"""Bytes touched per byte of gradients by the copy out of the buckets, which gradient_as_bucket_view saves; at best also
by the one into them (torch/csrc/distributed/c10d/reducer.cpp, finalize_bucket_dense and copy_grad)."""

_ADAM_STATE_BYTES = 16
"""Parameter, gradient and two moments in float32, per parameter."""

_SAVED_NOTE = "gradients share memory with the buckets: no detach_() on them"


class Ddp:
    """The all_reduces of a job's gradients, and what else they could be."""

    def __init__(self, job: TrainingJob, gradients: Sequence[MessageCalls], order: Sequence[int]) -> None:
        """Take the job, its gradients, and the bytes of its buckets in order."""
        self.job = job
        self.dtype = max(gradients, key=lambda calls: calls.bytes_per_step).message.dtype
        self.sizes = tuple(map(float, order))
        self.bytes = float(sum(order))
        self.parameters = self.bytes / DTYPE_SIZES[self.dtype]
        self.assigned = cache(self._assign)

    def step_us(
        self, sizes: Sequence[float], hook: str, view: bool, where: Cluster, assumed: Assumption, free: bool
    ) -> float:
        """Return the modelled step, µs.

        Args:
            sizes: bytes of each bucket, in order.
            hook: `bf16`, `powersgd` or empty.
            view: gradients are views of the buckets.
            assumed: see there.
            free: calls take no time.
        """
        backward = self.job.backward(self.parameters, assumed)
        buckets = [self._bucket(size, hook, where, assumed, free) for size in sizes]
        front_us, slowdown = self.job.compute_us - backward.length_us, slowdown_beside(where, round(max(sizes)))
        step = ddp_us(buckets, backward, front_us=front_us, stretch=assumed.stretch, slowdown=slowdown)
        saved_us = self._copied_us(assumed) if view else 0.0
        return step + self.job.waiting_us(assumed, where) - saved_us

    def as_is(self, assumed: Assumption, free: bool) -> float:
        """Return the modelled step of the job as it is, µs."""
        return self._model_step(self.sizes)(assumed, free)

    def changes(self, others: Iterable[Cluster]) -> Iterator[AdvisedChange]:
        """Yield everything to try; `others` are other numbers of nodes."""
        yield from self._change_buckets()
        yield from self._change_hooks()
        code = "with model.no_sync(): criterion(model(x), y).backward()    # for all micro-batches but the last"
        why = f"time per micro-batch; {_ACCUMULATED}x the batch per optimizer step"
        yield AdvisedChange(
            _ACCUMULATION, code, _accumulate(self.as_is, lambda assumed, _: self.as_is(assumed, True)), why
        )
        copied_us = self.job.workload.copied_us
        copies = "copies not recorded"
        if copied_us is not None:
            copies = f"the trace shows {copied_us / 1e3:.2f} ms of copies a step"
        code, step = "DDP(model, gradient_as_bucket_view=True)", self._model_step(self.sizes, view=True)
        yield AdvisedChange("gradient_as_bucket_view", code, step, f"{copies}; {_SAVED_NOTE}")
        if (cap := self._best_cap("")) is not None:
            code = f"DDP(model, bucket_cap_mb={cap}, gradient_as_bucket_view=True)"
            step = self._model_step(self.assigned(cap, cap), view=True)
            yield AdvisedChange(f"bucket_cap_mb={cap}, bucket view", code, step, _SAVED_NOTE)
        why = "saves only the search for unused parameters (find_unused_parameters=True), which no recording shows"
        yield AdvisedChange("static_graph", "DDP(model, static_graph=True)", why=why)
        for where in others:
            yield _change_nodes(self.job, where, self._model_step(self.sizes, where=where))

    def change_sharding(self) -> AdvisedChange:
        """Return the change to FSDP."""
        shards = "[fully_shard(block) for block in blocks]; fully_shard(model)"
        code = f"from torch.distributed.fsdp import fully_shard; {shards}"
        share = f"1/{self.job.cluster.world_size} of the memory"
        why = f"50 % more bytes, some in the forward pass; parameters, gradients and optimizer take {share}"
        change = AdvisedChange("FSDP instead of DDP", code, self._sharded_us, why)
        return _require_times(self.job, change, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)

    def _copied_us(self, assumed: Assumption) -> float:
        """Return the copies between gradients and buckets that a view saves, µs: no more than the recording shows."""
        copied_us = self.job.memory_us(BUCKET_COPY[assumed.calls < 0] * self.bytes, assumed)
        seen_us = self.job.workload.copied_us
        if seen_us is None:
            return copied_us
        # Small tensors copy slowly, so likely all that is seen is this copy; at worst only what its bytes take.
        return min(copied_us, seen_us) if assumed.calls > 0 else seen_us

    def _model_step(
        self, sizes: Sequence[float], *, hook: str = "", view: bool = False, where: Cluster | None = None
    ) -> partial[float]:
        return partial(self.step_us, sizes, hook, view, where or self.job.cluster)

    def _change_buckets(self) -> Iterator[AdvisedChange]:
        try:
            default = self.assigned(_DEFAULT_CAP_MB, FIRST_BUCKET_MB)
        except MissingDependencyError as error:
            yield AdvisedChange(name="bucket_cap_mb", code="DDP(model, bucket_cap_mb=...)", why=error.message)
            return
        is_default = abs(len(default) - len(self.sizes)) <= max(1, len(default) / 5)
        if not is_default:
            code = "DDP(model)    # bucket_cap_mb=None: 25 MiB, and 1 MiB for the first bucket"
            yield AdvisedChange("DDP's default buckets", code, self._model_step(default))
        if (cap := self._best_cap("")) is not None:
            code = f"DDP(model, bucket_cap_mb={cap})    # of the first bucket too"
            yield AdvisedChange(f"bucket_cap_mb={cap}", code, self._model_step(self.assigned(cap, cap)))
        if is_default:
            first = min(_FIRST_MB, key=lambda mb: self._likely_us(self.assigned(_DEFAULT_CAP_MB, mb)))
            code = f"torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = {first} * 2**20    # before DDP(model)"
            step = self._model_step(self.assigned(_DEFAULT_CAP_MB, first))
            yield AdvisedChange(f"first bucket of {first} MiB", code, step)

    def _change_hooks(self) -> Iterator[AdvisedChange]:
        module = "torch.distributed.algorithms.ddp_comm_hooks"
        if DTYPE_SIZES[self.dtype] <= 2:
            yield AdvisedChange(name="bf16 or fp16 compression", why=f"gradients are sent in {self.dtype} already")
        else:
            code = f"from {module}.default_hooks import bf16_compress_hook; "
            code += "model.register_comm_hook(None, bf16_compress_hook)"
            step = self._model_step(self.sizes, hook="bf16")
            yield AdvisedChange("bf16 or fp16 compression", code, step, lossy=True)
            if (cap := self._best_cap("bf16")) is not None:
                name = f"bf16, bucket_cap_mb={cap}, bucket view"
                code = f"model = DDP(model, bucket_cap_mb={cap}, gradient_as_bucket_view=True); {code}"
                step = self._model_step(self.assigned(cap, cap), hook="bf16", view=True)
                yield AdvisedChange(name, code, step, _SAVED_NOTE, lossy=True)
        code = f"from {module}.powerSGD_hook import PowerSGDState, powerSGD_hook; "
        code += "model.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=1), powerSGD_hook)"
        step, why = (
            self._model_step(self.sizes, hook="powersgd"),
            "from step 1,000 on; keeps a second copy of the gradients",
        )
        yield AdvisedChange("PowerSGD, rank 1", code, step, why, lossy=True)

    def _bucket(self, size: float, hook: str, where: Cluster, assumed: Assumption, free: bool) -> GradientBucket:
        """Return the cost of a bucket with a hook."""
        job, width = self.job, DTYPE_SIZES[self.dtype]

        def call_us(sent_bytes: float) -> float:
            return 0.0 if free else job.call_us(Collective.ALL_REDUCE, sent_bytes, assumed, where)

        if hook == "bf16":
            return GradientBucket(
                size, call_us(size * 2 / width), *(job.memory_us(share * size, assumed) for share in _CAST)
            )
        if hook == "powersgd":
            matrices = max(1, round(size / _PIECE_BYTES))
            factor_bytes = matrices * math.sqrt(size / matrices / width) * width
            small = _POWER_SGD_TENSOR_US * matrices if assumed.memory < LIKELY.memory else 0.0
            # P, Q, and the tensors that are no matrices.
            calls_us = 2 * call_us(factor_bytes) + call_us(max(1.0, factor_bytes / 2))
            return GradientBucket(size, calls_us, job.memory_us(_POWER_SGD * size, assumed) + small)
        return GradientBucket(size, call_us(size))

    def _sharded_us(self, assumed: Assumption, free: bool) -> float:
        job, sizes = self.job, self.sizes
        if len(sizes) < 8:
            sizes = tuple(self.bytes / 12 for _ in range(12))  # layers of a common model
        calls = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        units = [
            Unit(*(0.0 if free else job.call_us(collective, size, assumed, job.cluster) for collective in calls))
            for size in reversed(sizes)
        ]
        compute = job.sharded_compute(self.parameters, assumed)
        step_us = fsdp_us(units, compute, gathers_again=True, stretch=assumed.stretch)
        return step_us + job.waiting_us(assumed, job.cluster)

    def _best_cap(self, hook: str) -> int | None:
        """Return the cap whose step is likely shortest, the smallest of equal ones; None without PyTorch."""
        try:
            return min(_CAPS_MB, key=lambda mb: self._likely_us(self.assigned(mb, mb), hook))
        except MissingDependencyError:
            return None

    def _likely_us(self, sizes: Sequence[float], hook: str = "") -> float:
        return round(self._model_step(sizes, hook=hook)(LIKELY, False), 3)

    def _assign(self, cap_mb: float, first_mb: float) -> tuple[float, ...]:
        """Return the bytes of the buckets that DDP makes of these gradients."""
        width = DTYPE_SIZES[self.dtype]
        return tuple(float(n * width) for n in ddp_buckets(self._pieces(), self.dtype, cap_mb, first_mb))

    def _pieces(self) -> list[int]:
        """Return the elements of the tensors the buckets could hold; one far above the others holds a large one."""
        width, usual = DTYPE_SIZES[self.dtype], statistics.median(self.sizes)
        pieces: list[int] = []
        for size in self.sizes:
            large = size - usual if size > 2 * usual and len(self.sizes) > 2 else 0.0
            count = max(1, round((size - large) / _PIECE_BYTES))
            pieces += [max(1, round((size - large) / count / width))] * count
            pieces += [round(large / width)] if large else []
        return pieces


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
                0.0 if free else call(Collective.ALL_GATHER, n * self.gather_width),
                0.0 if free or not reduces else call(Collective.REDUCE_SCATTER, n * width),
            )
            for n in self.elements
        ]
        compute = job.sharded_compute(self.parameters / job.cluster.world_size, assumed)
        step_us = fsdp_us(units, compute, gathers_again=gathers_again, stretch=assumed.stretch)
        return step_us + job.waiting_us(assumed, where)

    def as_is(self, assumed: Assumption, free: bool) -> float:
        """Return the modelled step of the job as it is, µs."""
        return self._model_step()(assumed, free)

    def changes(self, others: Iterable[Cluster]) -> Iterator[AdvisedChange]:
        """Yield everything to try; `others` are other numbers of nodes."""
        if self.gathers_again:
            code = "fully_shard(block, reshard_after_forward=False)"
            size = format_bytes(round(self.parameters * self.gather_width))
            why = f"in the backward pass each GPU holds all parameters, {size}"
            step = self._model_step(gathers_again=False)
            yield AdvisedChange("parameters kept after the forward pass", code, step, why)
        if self.width > 2:
            code = "from torch.distributed.fsdp import MixedPrecisionPolicy; fully_shard(block, "
            code += "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))"
            yield AdvisedChange("gradients reduced in bf16", code, self._model_step(width=2.0), lossy=True)
        else:
            yield AdvisedChange(name="gradients reduced in bf16", why=f"they are in {self.reduce_dtype} already")
        code = "model.set_requires_gradient_sync(False)    # True before the last micro-batch's backward()"
        size = format_bytes(round(self.parameters * self.width))
        why = f"unsharded gradients take {size} on each GPU; {_ACCUMULATED}x the batch per optimizer step"
        accumulated = _accumulate(self.as_is, self._model_step(reduces=False))
        yield AdvisedChange(_ACCUMULATION, code, accumulated, f"time per micro-batch; {why}")
        for where in others:
            yield _change_nodes(self.job, where, self._model_step(where=where))
        name = "bucket_cap_mb, compression hooks, gradient_as_bucket_view, static_graph"
        yield AdvisedChange(name, why="options of DDP; this job is sharded")

    def change_sharding(self) -> AdvisedChange:
        """Return the change to DDP."""
        size = format_bytes(round(self.parameters * _ADAM_STATE_BYTES))
        why = f"needs {size} of parameters, gradients and Adam's moments on one GPU, plus activations"
        change = AdvisedChange("DDP instead of FSDP", "DDP(model)", self._unsharded_us, why)
        return _require_times(self.job, change, Collective.ALL_REDUCE)

    def _model_step(
        self, *, where: Cluster | None = None, width: float = 0.0, gathers_again: bool = True, reduces: bool = True
    ) -> partial[float]:
        again = self.gathers_again and gathers_again
        return partial(self.step_us, where or self.job.cluster, width or self.width, again, reduces)

    def _unsharded_us(self, assumed: Assumption, free: bool) -> float:
        job, bytes_ = self.job, self.parameters * self.width
        backward = job.backward(self.parameters, assumed)
        count = max(1, round(bytes_ / (_DEFAULT_CAP_MB * _MIB)))
        call_us = 0.0 if free else job.call_us(Collective.ALL_REDUCE, bytes_ / count, assumed, job.cluster)
        buckets = [GradientBucket(bytes_ / count, call_us)] * count
        front_us = job.compute_us - backward.length_us
        slowdown = slowdown_beside(job.cluster, round(bytes_ / count))
        step_us = ddp_us(buckets, backward, front_us=front_us, slowdown=slowdown, stretch=assumed.stretch)
        return step_us + job.waiting_us(assumed, job.cluster)


def _require_times(job: TrainingJob, change: AdvisedChange, *collectives: Collective) -> AdvisedChange:
    """Return the change, without a prediction where a recording has no times of its collectives."""
    missing = [collective.value for collective in collectives if not job.times.has_times(collective)]
    if not missing:
        return change
    why = f"{' and '.join(missing)} not recorded; predict it with --cluster NAME"
    return replace(change, code="", modelled=None, why=why)


def _change_nodes(job: TrainingJob, where: Cluster, modelled: Modelled) -> AdvisedChange:
    name = f"{count_noun(where.nodes, 'node')} x {where.gpus_per_node} GPUs"
    code = f"torchrun --nnodes={where.nodes} --nproc-per-node={where.gpus_per_node} ..."
    why = f"same batch per GPU, {where.world_size / job.cluster.world_size:g}x the global batch"
    return AdvisedChange(name, code, modelled, why)


def _accumulate(synced: Modelled, unsynced: Modelled) -> Modelled:
    """Return the mean micro-batch: gradients of the last one alone are sent."""
    return lambda assumed, free: (synced(assumed, free) + (_ACCUMULATED - 1) * unsynced(assumed, free)) / _ACCUMULATED

"""The workload of a model, from its name alone: no recording is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ncclt.core.message import Collective, parse_dtype
from ncclt.core.option import Option
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError
from ncclt.profile.model.libraries import build_model
from ncclt.profile.model.workload import (
    FIRST_BUCKET_MB,
    FsdpUnit,
    buffer_messages,
    ddp_messages,
    fsdp_messages,
    zero3_messages,
)

if TYPE_CHECKING:
    from torch import nn


class Sharding(StrEnum):
    """Distribution of a model over the ranks, which decides the messages."""

    DDP = "ddp"
    FSDP = "fsdp"
    ZERO3 = "zero3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model and how it is trained.

    Attributes:
        model: its name, see `libraries.build_model`.
        config: `config.json` of a transformers model, None = the defaults of its class.
        dtype: of parameters and gradients.
        reduce_dtype: of the reduced gradients, empty = `dtype`; FSDP's mixed precision often reduces in float32.
        bucket_cap_mb: DDP's `bucket_cap_mb`, MiB.
        sharding: see there.
        group_size: ranks that train together; 0 = the whole job, whatever its size turns out to be.
    """

    model: str = ""
    dtype: Annotated[str, Option("Type of parameters and gradients, such as bf16.")] = "float32"
    reduce_dtype: Annotated[str, Option("Type of reduced gradients under fsdp and zero3; default: --dtype.")] = ""
    bucket_cap_mb: Annotated[float, Option("Size of DDP's buckets, MiB.")] = 25
    sharding: Annotated[Sharding, Option("ddp, fsdp (one unit per block) or zero3.")] = Sharding.DDP
    group_size: Annotated[int, Option("Ranks per group; 0 = all ranks of the job.")] = 0
    config: Annotated[Path | None, Option("Path to config.json of a transformers model.")] = None


def build_model_workload(request: ModelRequest, *, name: str, created: str) -> Workload:
    """Compute what one training step of a model sends.

    Args:
        request: the model and how it is trained.
        created: ISO date for the provenance.

    Raises:
        UsageError: an option is invalid, or the model cannot be built offline.
        NotFoundError: no library knows the model.
        MissingDependencyError: a library is missing.
        InputError: an unknown dtype, or a configuration that cannot be read.
    """
    dtype = parse_dtype(request.dtype)
    reduce_dtype = parse_dtype(request.reduce_dtype) if request.reduce_dtype else dtype
    _check(request, dtype, reduce_dtype)
    module, facts = build_model(request.model, config=request.config)
    shapes = trainable_shapes(module)
    messages, notes = _SENDERS[request.sharding](module, dtype, reduce_dtype, request.bucket_cap_mb)
    if request.group_size:
        messages = tuple(
            replace(calls, message=replace(calls.message, group_size=request.group_size)) for calls in messages
        )
    detail = {
        **facts,
        "parameters": str(sum(math.prod(shape) for _, shape in shapes)),
        "tensors": str(len(shapes)),
        "dtype": dtype,
        "sharding": request.sharding.value,
    }
    if request.config is not None:
        detail["config"] = request.config.name
    if request.sharding is Sharding.DDP:
        detail |= {"bucket_cap_mb": f"{request.bucket_cap_mb:g}", "first_bucket_mb": str(FIRST_BUCKET_MB)}
    elif reduce_dtype != dtype:
        detail["reduce_dtype"] = reduce_dtype
    assumed = ("one forward and one backward pass per step, no gradient accumulation", *notes)
    origin = Provenance(source="model", created=created, detail=detail, notes=assumed)
    return Workload(name=name, messages=messages, provenance=origin)


def _check(request: ModelRequest, dtype: str, reduce_dtype: str) -> None:
    if request.group_size < 0 or request.group_size == 1:
        hint = "leave it out for the whole job"
        raise UsageError(f"--group-size must be at least 2, not {request.group_size}", hint=hint)
    if not (request.bucket_cap_mb > 0 and math.isfinite(request.bucket_cap_mb)):
        raise UsageError(f"--bucket-cap-mb must be above 0, not {request.bucket_cap_mb:g}", hint="DDP's default is 25")
    if request.sharding is Sharding.DDP and reduce_dtype != dtype:
        hint = "give --dtype the dtype of the gradients, or use fsdp"
        raise UsageError("DDP reduces gradients in their own dtype", hint=hint)
    if wrong := [name for name in (dtype, reduce_dtype) if "float" not in name]:
        raise UsageError(f"a model is not trained in {wrong[0]}", hint="use float32, bfloat16 or float16")


def _ddp(module: nn.Module, dtype: str, _reduce: str, cap_mb: float) -> tuple[tuple[MessageCalls, ...], list[str]]:
    buffers = buffer_messages(buffer_elements(module, dtype))
    notes = ["buffers are broadcast before each forward pass (broadcast_buffers=True, the default)"] if buffers else []
    return (*ddp_messages(trainable_shapes(module), dtype, cap_mb), *buffers), notes


def _fsdp(module: nn.Module, dtype: str, reduce: str, _cap_mb: float) -> tuple[tuple[MessageCalls, ...], list[str]]:
    gathered, reduced = fsdp_units(module, trainable=False), fsdp_units(module, trainable=True)
    gathers = [c for c in fsdp_messages(gathered, dtype, reduce) if c.message.collective is Collective.ALL_GATHER]
    scatters = [c for c in fsdp_messages(reduced, dtype, reduce) if c.message.collective is Collective.REDUCE_SCATTER]
    counts: Counter[str] = Counter()
    for unit in gathered:
        counts[unit.name] += unit.count
    wrapped = ", ".join(f"{count} x {unit}" for unit, count in counts.items())
    notes = [f"units: {wrapped}", "padding to a multiple of the group size is left out"]
    return (*gathers, *scatters), notes


def _zero3(module: nn.Module, dtype: str, reduce: str, _cap_mb: float) -> tuple[tuple[MessageCalls, ...], list[str]]:
    notes = [
        "DeepSpeed's defaults: parameters up to 100,000 elements stay whole, gradients are reduced 500 M at a time",
        "one all_gather per parameter; DeepSpeed joins those of one module and those it prefetches where it can",
        "padding to a multiple of the group size is left out",
    ]
    parameters = [p.numel() for p in module.parameters()]
    trainable = [p.numel() for p in module.parameters() if p.requires_grad]
    return zero3_messages(parameters, trainable, dtype, reduce), notes


_SENDERS = {Sharding.DDP: _ddp, Sharding.FSDP: _fsdp, Sharding.ZERO3: _zero3}


# NCCL sends a complex number as two real ones.
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_EIGHT_BIT_FLOATS = {"float8_e4m3fn": "float8_e4m3"}


def trainable_shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, shape) of every parameter that gets a gradient, in order, tied ones once.

    Raises:
        UsageError: there is none.
    """
    shapes = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
    if not shapes:
        raise UsageError(f"{type(module).__name__} has no trainable parameters, so it sends nothing")
    return shapes


def buffer_elements(module: nn.Module, dtype: str) -> dict[str, int]:
    """Return the elements of all buffers by dtype; floating-point ones are those of the training, as `module.to` does.

    Args:
        dtype: of the training, a key of `DTYPE_SIZES`.
    """
    elements: Counter[str] = Counter()
    for buffer in module.buffers():
        name = str(buffer.dtype).removeprefix("torch.")
        if buffer.is_floating_point():
            elements[dtype] += buffer.numel()
        elif name in _COMPLEX:
            elements[_COMPLEX[name]] += 2 * buffer.numel()
        else:
            elements[_EIGHT_BIT_FLOATS.get(name, name)] += buffer.numel()
    return dict(elements)


def fsdp_units(module: nn.Module, *, trainable: bool) -> tuple[FsdpUnit, ...]:
    """Return the modules that FSDP wraps, outermost first within each other, and the root with what is left.

    transformers names its blocks in `_no_split_modules`, which accelerate wraps by default; elsewhere every module
    of a class that repeats inside of a ModuleList or Sequential is a unit (the blocks of vision models).

    Args:
        trainable: count the parameters that get a gradient (what is reduced) instead of all (what is gathered).
    """
    classes = _block_classes(module)
    counted: set[int] = set()
    blocks = Counter(
        (type(block).__name__, _count_new_elements(block, counted, trainable=trainable))
        for block in _outermost(module, classes)
    )
    root = _count_new_elements(module, counted, trainable=trainable)
    units = [
        FsdpUnit(name=name, parameters=elements, count=count) for (name, elements), count in blocks.items() if elements
    ]
    return (*units, *((FsdpUnit(name="root", parameters=root, is_root=True),) if root else ()))


def _block_classes(module: nn.Module) -> frozenset[str]:
    named = getattr(module, "_no_split_modules", None)
    if named:
        return frozenset(named)
    from torch import nn

    lists = (nn.ModuleList, nn.Sequential)
    children = [child for parent in module.modules() if isinstance(parent, lists) for child in parent.children()]
    blocks = (c for c in children if any(True for _ in c.children()) and any(True for _ in c.parameters()))
    repeated = Counter(type(block).__name__ for block in blocks if not isinstance(block, lists))
    return frozenset(name for name, count in repeated.items() if count > 1)


def _outermost(module: nn.Module, classes: frozenset[str]) -> Iterator[nn.Module]:
    """Yield the blocks below a module, without blocks inside of blocks."""
    for child in module.children():
        if type(child).__name__ in classes:
            yield child
        else:
            yield from _outermost(child, classes)


def _count_new_elements(module: nn.Module, counted: set[int], *, trainable: bool) -> int:
    """Return the elements of the parameters that no unit before has, and remember them: tied ones count once."""
    total = 0
    for parameter in module.parameters():
        if id(parameter) not in counted:
            counted.add(id(parameter))
            total += parameter.numel() if parameter.requires_grad or not trainable else 0
    return total

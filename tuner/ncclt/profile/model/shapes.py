"""What a built model would send: shapes of its parameters, sizes of its buffers, units for FSDP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ncclt.errors import UsageError
from ncclt.profile.model.workload import FsdpUnit

if TYPE_CHECKING:
    from torch import nn

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
    found: Counter[str] = Counter()
    for buffer in module.buffers():
        name = str(buffer.dtype).removeprefix("torch.")
        if buffer.is_floating_point():
            found[dtype] += buffer.numel()
        elif name in _COMPLEX:
            found[_COMPLEX[name]] += 2 * buffer.numel()
        else:
            found[_EIGHT_BIT_FLOATS.get(name, name)] += buffer.numel()
    return dict(found)


def fsdp_units(module: nn.Module, *, trainable: bool) -> tuple[FsdpUnit, ...]:
    """Return the modules that FSDP wraps, outermost first within each other, and the root with what is left.

    transformers names its blocks in `_no_split_modules`, which accelerate wraps by default; elsewhere every module
    of a class that repeats inside of a ModuleList or Sequential is a unit (the blocks of vision models).

    Args:
        trainable: count the parameters that get a gradient (what is reduced) instead of all (what is gathered).
    """
    classes = _block_classes(module)
    seen: set[int] = set()
    blocks = Counter(
        (type(block).__name__, _fresh_elements(block, seen, trainable=trainable))
        for block in _outermost(module, classes)
    )
    root = _fresh_elements(module, seen, trainable=trainable)
    units = [
        FsdpUnit(name=name, parameters=elements, count=count) for (name, elements), count in blocks.items() if elements
    ]
    return (*units, *((FsdpUnit(name="root", parameters=root, is_root=True),) if root else ()))


def _block_classes(module: nn.Module) -> frozenset[str]:
    named = getattr(module, "_no_split_modules", None)
    if named:
        return frozenset(named)
    from torch import nn

    repeated: Counter[str] = Counter(
        type(child).__name__
        for container in module.modules()
        if isinstance(container, nn.ModuleList | nn.Sequential)
        for child in container.children()
        if next(child.children(), None) is not None
        and not isinstance(child, nn.ModuleList | nn.Sequential)
        and next(child.parameters(), None) is not None
    )
    return frozenset(name for name, count in repeated.items() if count > 1)


def _outermost(module: nn.Module, classes: frozenset[str]) -> Iterator[nn.Module]:
    """Yield the blocks below a module, without blocks inside of blocks."""
    for child in module.children():
        if type(child).__name__ in classes:
            yield child
        else:
            yield from _outermost(child, classes)


def _fresh_elements(module: nn.Module, seen: set[int], *, trainable: bool) -> int:
    """Return the elements of the parameters that no unit before has, and remember them: tied ones count once."""
    total = 0
    for parameter in module.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            if parameter.requires_grad or not trainable:
                total += parameter.numel()
    return total

"""The workload of a model, from its name alone: no recording is needed.

Models are built by their name in torchvision, transformers or timm, on the meta device: shapes without weights. Nothing
is fetched: pretrained weights are switched off, and transformers' models come from the default configuration of their
class or from a local `config.json`, never from a hub.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from ncclt.core.message import Collective, parse_dtype
from ncclt.core.option import Option
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import InputError, MissingDependencyError, NotFoundError, UsageError, missing_dependency
from ncclt.profile.model.workload import (
    FIRST_BUCKET_MB,
    FsdpUnit,
    buffer_messages,
    ddp_messages,
    fsdp_messages,
    zero3_messages,
)
from ncclt.profile.source import open_regular

if TYPE_CHECKING:
    from torch import nn


_MOST_BYTES = 1024 * 1024
"""Max size of a configuration; the largest known ones have about 100 KiB of label names."""

_MOST_MODULES = 10_000
"""Max number of layers, heads or experts, far above any real model; more would take minutes to build."""

_COUNTS = re.compile(r"(^|_)(num|n|depths?|layers?|blocks?|experts?)(_|$)")

LIBRARIES = ("torchvision", "transformers", "timm")
"""Libraries to look up names in, in this order; `timm:resnet50` selects one."""

# Exceptions of model constructors for an impossible shape, a missing package, or a missing file.
_BUILD_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError),
    *(TypeError, ValueError),
)
_IMPORT_ERRORS = (ImportError, OSError, RuntimeError)  # a build for another torch fails with the last two


def build_model(name: str, *, config: Path | None = None) -> tuple[nn.Module, dict[str, str]]:
    """Build a model on the meta device, without weights, GPU and network.

    Args:
        name: of a torchvision or timm model, a transformers model type (`bert`) or class (`BertForPreTraining`),
            with `LIBRARY:` before it where one library is meant. With `config` it may be anything: a class that is
            known decides, else the architecture that the file names.
        config: `config.json` of a transformers model.

    Returns:
        The model, and for the provenance: `model`, the name of the model or class that was built, and `library` with
        its version, `timm 1.0.20`.

    Raises:
        UsageError: the name is one of a hub, or the model cannot be built offline.
        NotFoundError: no installed library knows the name.
        MissingDependencyError: a library is missing that could know it.
        InputError: the configuration cannot be read.
    """
    prefix, colon, suffix = name.partition(":")
    if colon and prefix not in LIBRARIES:
        raise UsageError(f"no library {prefix!r} to look up {name!r}", hint=f"one of {', '.join(LIBRARIES)}")
    wanted, short = ((prefix,), suffix) if colon else (LIBRARIES, name)
    with _offline():
        _load("torch")
        if config is not None:
            library = _load("transformers")
            return _build(library, short, _find_configured(library, short, config))
        loaded: list[ModuleType] = []
        lacking: list[str] = []
        for library_name in wanted:
            try:
                loaded.append(_load(library_name))
            except MissingDependencyError as error:
                lacking.append(error.message)
                continue
            if maker := _MAKERS[library_name](loaded[-1], short):
                return _build(loaded[-1], short, maker)
        raise _not_found(short, loaded, lacking)


def _build(library: ModuleType, name: str, maker: Callable[[], nn.Module]) -> tuple[nn.Module, dict[str, str]]:
    try:
        module = _build_on_meta(maker)
    except _BUILD_ERRORS as error:
        raise UsageError(
            f"{library.__name__} cannot build {name!r} from its own defaults: {_first_line(error)}",
            hint="transformers models take their shape from a local file with --config config.json",
        ) from error
    shown = name if library.__name__ != "transformers" else type(module).__name__
    return module, {"model": shown, "library": f"{library.__name__} {library.__version__}"}


def _build_on_meta(maker: Callable[[], nn.Module]) -> nn.Module:
    """Build a module without memory for its weights.

    A constructor that reads the value of a tensor fails on the meta device; it gets a second try with number sequences
    on the CPU: some compute widths with them and read the result (torchvision's RegNet).
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class NumbersOnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if func in (torch.arange, torch.linspace, torch.tensor):
                options.setdefault("device", "cpu")
            return func(*args, **options)

    # Warnings are advice on initial weights, and there are no weights.
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return maker()
        except (NotImplementedError, RuntimeError):
            with NumbersOnCpu():
                return maker()


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_dependency(error.name or name) from error
    except _IMPORT_ERRORS as error:
        raise MissingDependencyError(
            f"{name} cannot be imported: {_first_line(error)}: install the build for this torch"
        ) from error


def _torchvision(library: ModuleType, name: str) -> Callable[[], nn.Module] | None:
    if name not in library.models.list_models():
        return None
    # Detection and segmentation models fetch the weights of their backbone by default.
    known = inspect.signature(library.models.get_model_builder(name)).parameters
    off: dict[str, Any] = {option: None for option in ("weights", "weights_backbone") if option in known}
    return lambda: library.models.get_model(name, **off)


def _timm(library: ModuleType, name: str) -> Callable[[], nn.Module] | None:
    if not library.is_model(name):
        return None
    return lambda: library.create_model(name, pretrained=False)


def _transformers(library: ModuleType, name: str) -> Callable[[], nn.Module] | None:
    if name in library.CONFIG_MAPPING:
        return lambda: library.AutoModel.from_config(library.CONFIG_MAPPING[name](), trust_remote_code=False)
    cls = _model_class(library, name)
    return None if cls is None or cls.config_class is None else lambda: cls(cls.config_class())


def _find_configured(library: ModuleType, name: str, path: Path) -> Callable[[], nn.Module]:
    document = read_config(path)
    kind = document["model_type"]
    if kind not in library.CONFIG_MAPPING:
        raise NotFoundError(
            f"transformers {library.__version__} has no model type {kind!r}, which {path} names",
            hint=_suggest(kind, list(library.CONFIG_MAPPING.keys())) or "update transformers",
        )
    named = [name, *(a for a in document.get("architectures") or () if isinstance(a, str))]
    cls = next(filter(None, (_model_class(library, class_name) for class_name in named)), None)

    def make() -> nn.Module:
        config = library.CONFIG_MAPPING[kind].from_dict(document)
        model: nn.Module = (
            library.AutoModel.from_config(config, trust_remote_code=False) if cls is None else cls(config)
        )
        return model

    return make


def _model_class(library: ModuleType, name: str) -> Any:
    """Return the model class of this name, None where transformers has none."""
    try:
        cls = getattr(library, name, None) if name.isidentifier() else None
    except _IMPORT_ERRORS as error:  # transformers imports its models when they are first asked for
        hint = "install what it names, for this torch"
        raise MissingDependencyError(f"transformers cannot load {name}: {_first_line(error)}", hint=hint) from error
    return cls if isinstance(cls, type) and issubclass(cls, library.PreTrainedModel) else None


_MAKERS = {"torchvision": _torchvision, "transformers": _transformers, "timm": _timm}

_NAMES: dict[str, Callable[[ModuleType], Iterable[str]]] = {
    "torchvision": lambda library: library.models.list_models(),
    "transformers": lambda library: library.CONFIG_MAPPING.keys(),
    "timm": lambda library: library.list_models(),
}


def _not_found(
    name: str, loaded: Sequence[ModuleType], lacking: Sequence[str]
) -> NotFoundError | MissingDependencyError | UsageError:
    if "/" in name:
        hint = "save the config.json of that model and give --config config.json"
        return UsageError(f"{name} is a model hub name, and ncclt downloads nothing", hint=hint)
    if lacking:
        return MissingDependencyError(f"no installed library knows the model {name!r}, and {'; '.join(lacking)}")
    names = [known for library in loaded for known in _NAMES[library.__name__](library)]
    from_hub = "for a checkpoint of a hub save its config.json and give --config config.json"
    hint = "; ".join(part for part in (_suggest(name, names), from_hub) if part)
    return NotFoundError(f"{', '.join(library.__name__ for library in loaded)} know no model {name!r}", hint=hint)


def _suggest(name: str, names: Sequence[str]) -> str:
    # `bert-base-uncased` is closest to `bert`, its beginning, whatever the letters say.
    begins = sorted((n for n in names if len(n) > 1 and name.startswith(n)), key=len)[-1:]
    close = dict.fromkeys([*begins, *difflib.get_close_matches(name, names, n=3, cutoff=0.5)])
    return f"did you mean {' or '.join(close)}?" if close else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


@contextmanager
def _offline() -> Iterator[None]:
    """Forbid huggingface_hub to fetch anything; transformers and timm both go through it."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration; it names its `model_type`.

    Raises:
        InputError: it cannot be read, is no JSON object, names no model type, or asks for absurdly many layers.
    """
    hint = "give the config.json next to the weights of a transformers model"
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from error
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path} is larger than 1 MiB and no configuration", hint=hint)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}", hint=hint) from error
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise InputError(f"{path} names no model_type", hint=hint)
    for name, count in _counts(document):
        if count > _MOST_MODULES:
            raise InputError(f"{path} asks for {name} = {count}", hint=f"more than {_MOST_MODULES} cannot be meant")
    return document


def _counts(document: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the numbers by which modules are repeated, also of nested configurations and lists."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif _COUNTS.search(name):
            for count in value if isinstance(value, list) else [value]:
                if isinstance(count, int) and not isinstance(count, bool):
                    yield name, count


class Sharding(StrEnum):
    """Distribution of a model over the ranks, which decides the messages."""

    DDP = "ddp"
    FSDP = "fsdp"
    ZERO3 = "zero3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Model and its way of training.

    Attributes:
        model: name of the model, see `build_model`.
        config: `config.json` of a transformers model; None = the defaults of its class.
        dtype: dtype of parameters and gradients.
        reduce_dtype: dtype of the reduced gradients; empty = `dtype`; FSDP's mixed precision often reduces in float32.
        bucket_cap_mb: DDP's `bucket_cap_mb`, MiB.
        sharding: sharding of the model.
        group_size: ranks that train together; 0 = the whole job of any size.
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

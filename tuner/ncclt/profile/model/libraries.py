"""Models by their name in torchvision, transformers or timm, built on the meta device: shapes without weights.

Nothing is fetched: pretrained weights are switched off, and transformers' models come from the default configuration of
their class or from a local `config.json`, never from a hub.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ncclt.errors import InputError, MissingDependencyError, NotFoundError, UsageError, missing_dependency
from ncclt.profile.source import open_regular

if TYPE_CHECKING:
    from torch import nn

_MOST_BYTES = 1024 * 1024
"""Far above any configuration; the largest that are known have some 100 KiB of label names."""

_MOST_MODULES = 10_000
"""More layers, heads or experts than any model has; building them would take minutes for nothing."""

_COUNTS = re.compile(r"(^|_)(num|n|depths?|layers?|blocks?|experts?)(_|$)")

LIBRARIES = ("torchvision", "transformers", "timm")
"""Libraries in which names are looked up, in this order; `timm:resnet50` asks one of them alone."""

# What constructors of models raise for an impossible shape, a missing package, or a missing file.
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
    """Return the module that `maker` builds, without memory for its weights.

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

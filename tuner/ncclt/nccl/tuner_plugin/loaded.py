"""Call the compiled plugin as NCCL does, and examine tables with it, without a GPU and without NCCL.

The layouts are defined here again, not taken from our C header, so that a mistake in either is found. Both are compared
with NCCL's own builds (docs/reference/nccl-versions.json).
"""

from __future__ import annotations

import ctypes as c
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.errors import InputError, UsageError
from ncclt.nccl.tuner_plugin import DELEGATE_VARIABLE
from ncclt.nccl.tuner_table import ALGORITHMS, PROTOCOLS

COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""Our words for `FUNCTIONS`."""

API_VERSIONS = (2, 3, 4, 5, 6, 7)

# A caller of a variadic function passes such arguments in the same registers on x86-64 and aarch64 Linux; the plugin
# always gives "%s" and one finished sentence.
_LOGGER = c.CFUNCTYPE(None, c.c_int, c.c_ulong, c.c_char_p, c.c_int, c.c_char_p, c.c_char_p)
_COSTS = c.POINTER(c.c_float)
_INIT_OLD = c.CFUNCTYPE(c.c_int, c.c_size_t, c.c_size_t, _LOGGER, c.POINTER(c.c_void_p))
_INIT_NEW = c.CFUNCTYPE(
    c.c_int, c.POINTER(c.c_void_p), c.c_uint64, c.c_size_t, c.c_size_t, _LOGGER, c.c_void_p, c.c_void_p
)
_END = c.CFUNCTYPE(c.c_int, c.c_void_p)


def layout(version: int) -> type[c.Structure]:
    """Return the struct `ncclTunerPlugin_vN`: name, init, choose, end, and since v6 get_chunk_size."""
    init = _INIT_OLD if version < 5 else _INIT_NEW
    numbers = (c.c_int,) * 3
    own: tuple[Any, ...] = (c.c_int, _COSTS, *numbers[: 3 if version >= 4 else 2])  # v4 tells of registered buffers
    if version == 2:
        own = (*numbers, c.POINTER(c.c_int), c.POINTER(c.c_int))
    choose = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_size_t, *own, c.POINTER(c.c_int))
    chunk = [("get_chunk_size", c.c_void_p)] if version >= 6 else []
    fields = [("name", c.c_char_p), ("init", init), ("choose", choose), ("end", _END), *chunk]
    return type(f"Tuner{version}", (c.Structure,), {"_fields_": fields})


@dataclass(kw_only=True)
class CallResult:
    """The result of a call.

    Attributes:
        costs: the cost table after the call, row by row; empty with API v2.
        channels: 0 = NCCL's own number.
        algorithm, protocol: numbers returned through API v2, None = none were.
    """

    costs: list[float]
    channels: int
    algorithm: int | None = None
    protocol: int | None = None


@dataclass(kw_only=True)
class Communicator:
    """A simulated communicator for the plugin.

    Attributes:
        log: what the plugin wrote to NCCL's log.
        context: the plugin's own handle.
    """

    tuner: c.Structure
    api: int
    context: c.c_void_p
    log: list[str] = field(default_factory=list)

    def ask(
        self,
        function: int,
        size_bytes: int,
        *,
        costs: Sequence[float] = (1.0,) * 21,
        protocols: int = 3,
        registered: int = 0,
        pipe_ops: int = 1,
        supports: tuple[int, int] = (1, 1),
    ) -> CallResult:
        """Ask for one collective as NCCL does.

        Args:
            function: number of the collective.
            size_bytes: tuning size.
            costs: the cost table, row by row; ignored by API v2.
            protocols: its number of columns.
            registered: whether the buffers are (API v4 and later).
            pipe_ops: operations in one pipeline; 0 = an estimate, which NCCL 2.32 requests before the call.
            supports: whether CollNet and NVLS are supported (API v2).

        Raises:
            InputError: the plugin returned an error, which fails the collective.
        """
        channels = c.c_int(0)
        if self.api == 2:
            algorithm, protocol = c.c_int(-1), c.c_int(-1)
            code = self.tuner.choose(
                self.context, function, size_bytes, *supports, pipe_ops, c.byref(algorithm), c.byref(protocol), channels
            )
            _check(code, self.log)
            pair = (algorithm.value, protocol.value) if algorithm.value >= 0 else (None, None)
            return CallResult(costs=[], channels=channels.value, algorithm=pair[0], protocol=pair[1])
        table = (c.c_float * len(costs))(*costs)
        shape = (len(costs) // protocols, protocols)
        registration = (registered,) if self.api >= 4 else ()
        code = self.tuner.choose(self.context, function, size_bytes, pipe_ops, table, *shape, *registration, channels)
        _check(code, self.log)
        return CallResult(costs=list(table), channels=channels.value)


def _check(code: int, log: Sequence[str] = ()) -> None:
    if code:
        why = " ".join(log) or "it does not say why"
        raise InputError(f"the plugin returned the error {code}: {why}")


class LoadedPlugin:
    """A compiled plugin in this process."""

    def __init__(self, path: Path) -> None:
        """Load a shared object.

        Raises:
            InputError: it cannot be loaded, or lacks a symbol that NCCL looks for.
        """
        try:
            self._library = c.CDLL(str(path.absolute()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
            self._tuners = {
                version: layout(version).in_dll(self._library, f"ncclTunerPlugin_v{version}")
                for version in API_VERSIONS
            }
            if misplaced := [version for version, tuner in self._tuners.items() if not tuner.end]:
                raise ValueError(f"API v{misplaced[0]} has no finalize where NCCL calls it, and would crash NCCL")
            self._library.ncclt_describe  # noqa: B018  # an older plugin has none
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path} cannot be loaded as a tuner plugin: {error}", hint="build it here: ncclt admin plugin build"
            ) from error

    def describe(self, environ: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return the loaded plugin, NCCL and table of this process, as the ranks of a job compare them.

        Args:
            environ: variables that the plugin sees, None = not set.

        Returns:
            plugin (version of ncclt), image (checksum of the plugin's code), nccl, table (checksum), problem (why the
            table cannot be used; empty = it can).
        """
        text = c.create_string_buffer(2048)
        with _variables(environ or {}):
            self._library.ncclt_describe(text, c.c_size_t(len(text)))
        return dict(line.split("=", 1) for line in text.value.decode().splitlines())

    @contextmanager
    def communicator(
        self, *, api: int = 6, ranks: int, nodes: int, number: int = 1, environ: Mapping[str, str | None] | None = None
    ) -> Iterator[Communicator]:
        """Open a communicator as NCCL does, and close it at the end.

        Args:
            api: version of the tuner API.
            ranks: ranks of the communicator.
            nodes: nodes it spans.
            number: its id (API v5 and later).
            environ: variables that the plugin sees while it opens, None = not set.

        Raises:
            InputError: the plugin fails NCCL's init, since it cannot use the table that this rank was promised.
        """
        log: list[str] = []
        logger = _LOGGER(lambda _level, _flags, _file, _line, _format, text: log.append(text.decode(errors="replace")))
        context, tuner = c.c_void_p(), self._tuners[api]
        with _variables(environ or {}):
            if api < 5:
                code = tuner.init(ranks, nodes, logger, c.byref(context))
            else:
                code = tuner.init(c.byref(context), number, ranks, nodes, logger, None, None)
            _check(code, log)
        try:
            yield Communicator(tuner=tuner, api=api, context=context, log=log)
        finally:
            _check(tuner.end(context))


# The environment belongs to the process: without this lock, two threads could restore each other's values.
_ENVIRONMENT = threading.Lock()


@contextmanager
def _variables(wanted: Mapping[str, str | None]) -> Iterator[None]:
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in wanted}
        try:
            _set(wanted)
            yield
        finally:
            _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_CHANNELS_BEFORE_V4 = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginChoice(Documented):
    """Cheapest choice of the plugin for one size; empty words = left to NCCL, channels 0 = left to NCCL."""

    collective: str
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int

    def text(self) -> str:
        """Return it as one line of text."""
        if not self.algorithm:
            return f"{self.collective} {self.size_bytes}: the NCCL default"
        channels = f"{self.channels} channels" if self.channels else "NCCL's own channels"
        return f"{self.collective} {self.size_bytes}: {self.algorithm} {self.protocol}, {channels}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExamination(Documented):
    """The result of trying a plugin.

    Attributes:
        library: the shared object.
        api_versions: tuner APIs under which it gave the same answers, but for the channels that NCCL lacks.
        said: its line in NCCL's log.
        choices: one per size.
        works: it answers, and uses the table that was given.
    """

    SHAPE: ClassVar = Shape(schema=1)

    library: str
    api_versions: tuple[int, ...]
    said: str
    choices: tuple[PluginChoice, ...]
    works: bool


def examine(
    library: Path, *, policy: Path | None, ranks: int, nodes: int, collective: str, sizes: Sequence[int]
) -> TableExamination:
    """Load a plugin and call it for every size, under every tuner API that has a cost table.

    Raises:
        UsageError: no such collective.
        InputError: the library cannot be loaded, or answers differently under two APIs.
    """
    if collective not in COLLECTIVES:
        raise UsageError(f"the plugin is not asked for {collective!r}", hint=f"one of {', '.join(COLLECTIVES)}")
    plugin, tabled = LoadedPlugin(library), API_VERSIONS[1:]
    unset = ("NCCLT_POLICY_CHECKSUM", "NCCLT_TABLE", "NCCLT_AGREEMENT", "NCCL_TUNER_CONFIG_FILE", "NCCLT_POLICY_SHM")
    environ = dict.fromkeys((*unset, "NCCLT_PLUGIN_REPORT")) | {
        "NCCLT_POLICY": None if policy is None else str(policy),
        DELEGATE_VARIABLE: "none",  # the table's choices alone
    }
    answers = {}
    for api in tabled:
        with plugin.communicator(api=api, ranks=ranks, nodes=nodes, environ=environ) as communicator:
            choices = tuple(_choose(communicator, collective, size) for size in sizes)
        log = " ".join(communicator.log)
        answers[api] = choices
    # Before v4 the plugin names 32 channels at most (plugin/tuner.c).
    limited = tuple(replace(choice, channels=min(choice.channels, _CHANNELS_BEFORE_V4)) for choice in choices)
    if any(answer != (choices if api >= 4 else limited) for api, answer in answers.items()):
        raise InputError(
            f"{library} answers differently under two tuner APIs", hint="build it here: ncclt admin plugin build"
        )
    return TableExamination(
        library=str(library),
        api_versions=tabled,
        said=log,
        choices=choices,
        works=policy is None or "keeping the NCCL default" not in log,
    )


def _choose(communicator: Communicator, collective: str, size_bytes: int) -> PluginChoice:
    answer = communicator.ask(COLLECTIVES.index(collective), size_bytes)
    chosen = next((at for at, cost in enumerate(answer.costs) if cost < 1), None)
    return PluginChoice(
        collective=collective,
        size_bytes=size_bytes,
        algorithm="" if chosen is None else ALGORITHMS[chosen // len(PROTOCOLS)],
        protocol="" if chosen is None else PROTOCOLS[chosen % len(PROTOCOLS)],
        channels=answer.channels,
    )

"""Tries a compiled plugin with a table: what it logs, and what it would choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.errors import InputError, UsageError
from ncclt.nccl.tuner_plugin import DELEGATE_VARIABLE
from ncclt.nccl.tuner_plugin.loaded import API_VERSIONS, COLLECTIVES, LoadedPlugin
from ncclt.nccl.tuner_table import ALGORITHMS, PROTOCOLS

_CHANNELS_BEFORE_V4 = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginChoice(Documented):
    """What the plugin makes the cheapest for one size; empty words = left to NCCL, channels 0 = left to NCCL."""

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
    found = [
        _ask(plugin, api, policy=policy, ranks=ranks, nodes=nodes, collective=collective, sizes=sizes) for api in tabled
    ]
    said, choices = found[-1]
    if any(
        given != tuple(_limited(one, api) for one in choices) for api, (_, given) in zip(tabled, found, strict=True)
    ):
        raise InputError(
            f"{library} answers differently under two tuner APIs", hint="build it here: ncclt admin plugin build"
        )
    return TableExamination(
        library=str(library),
        api_versions=tabled,
        said=said,
        choices=choices,
        works=policy is None or "keeping the NCCL default" not in said,
    )


def _limited(choice: PluginChoice, api: int) -> PluginChoice:
    """Return a choice as an API gives it: before v4 the plugin names 32 channels at most (plugin/tuner.c)."""
    return replace(choice, channels=min(choice.channels, _CHANNELS_BEFORE_V4)) if api < 4 else choice


def _ask(
    plugin: LoadedPlugin,
    api: int,
    *,
    policy: Path | None,
    ranks: int,
    nodes: int,
    collective: str,
    sizes: Sequence[int],
) -> tuple[str, tuple[PluginChoice, ...]]:
    environ = {
        "NCCLT_POLICY": None if policy is None else str(policy),
        "NCCLT_POLICY_CHECKSUM": None,
        "NCCLT_TABLE": None,
        "NCCLT_AGREEMENT": None,
        "NCCL_TUNER_CONFIG_FILE": None,
        "NCCLT_POLICY_SHM": None,
        "NCCLT_PLUGIN_REPORT": None,
        DELEGATE_VARIABLE: "none",  # the table's choices alone
    }
    with plugin.communicator(api=api, ranks=ranks, nodes=nodes, environ=environ) as communicator:
        choices = []
        for size in sizes:
            answer = communicator.ask(COLLECTIVES.index(collective), size)
            chosen = next((at for at, cost in enumerate(answer.costs) if cost < 1), None)
            choices.append(
                PluginChoice(
                    collective=collective,
                    size_bytes=size,
                    algorithm="" if chosen is None else ALGORITHMS[chosen // len(PROTOCOLS)],
                    protocol="" if chosen is None else PROTOCOLS[chosen % len(PROTOCOLS)],
                    channels=answer.channels,
                )
            )
    return " ".join(communicator.said), tuple(choices)

"""The product: rules by collective and message range, and process-wide parameters."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ncclt.core.algo_proto_text import BASE_NEEDED_SINCE
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import Setting
from ncclt.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Documented):
    """Choice for one collective in one range of sizes.

    Attributes:
        collective: only tunable ones.
        min_bytes, max_bytes: tuning sizes, both inclusive; max_bytes None = no upper end.
        group_size: ranks of the communicator that the rule is for; 0 = any.
        spans_nodes: whether that communicator reaches over more than one node; None = either. Groups of one size may be
            placed in both ways: tensor parallel inside the nodes, data parallel across them.
        algorithm, protocol, channels: forced; None = left to NCCL.
    """

    SHAPE: ClassVar = Shape(complete=True, omitted=("spans_nodes",))

    collective: Collective
    min_bytes: int = 0
    max_bytes: int | None = None
    group_size: int = 0
    spans_nodes: bool | None = None
    algorithm: Algorithm | None = None
    protocol: Protocol | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if not self.collective.is_tunable:
            raise SettingError(f"no algorithm or protocol can be chosen for {self.collective}")
        if self.min_bytes < 0 or (self.max_bytes is not None and self.max_bytes < self.min_bytes):
            raise SettingError(f"a rule cannot cover {self.min_bytes} to {self.max_bytes} bytes")
        if self.spans_nodes is not None and not self.group_size:
            raise SettingError("a rule for groups of any size cannot say how they are placed on the nodes")

    @property
    def covers_all_sizes(self) -> bool:
        """Return True if the rule holds for every size and group of its collective."""
        return self.min_bytes == 0 and self.max_bytes is None and self.group_size == 0

    @property
    def precedence(self) -> tuple[int, int, str, int]:
        """Return the sort key for lists in which the first matching rule counts: one communicator's rules together."""
        placed = 2 if self.spans_nodes is None else int(self.spans_nodes)
        return -self.group_size, placed, self.collective.value, self.min_bytes

    def matches(self, message: Message) -> bool:
        """Return True if the rule covers a message."""
        return (
            message.collective is self.collective
            and self.min_bytes <= message.size_bytes
            and (self.max_bytes is None or message.size_bytes <= self.max_bytes)
            and self.group_size in (0, message.group_size)
            and self.spans_nodes in (None, message.spans_nodes)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Documented):
    """Rules, disjoint and in order, and process-wide parameters. The empty policy is the NCCL default.

    Attributes:
        rules: sorted by collective, group and range; no two overlap. What no rule covers is left to NCCL.
        parameters: process-wide parameters by catalogue name without `NCCL_`.
    """

    SHAPE: ClassVar = Shape(name="a policy document", error=SettingError, complete=True, pairs=("parameters",))

    rules: tuple[Rule, ...] = ()
    parameters: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.rules, key=lambda r: (r.collective, *_group(r), r.min_bytes)))
        for rule, following in itertools.pairwise(ordered):
            is_same_group = rule.collective is following.collective and _group(rule) == _group(following)
            if is_same_group and (rule.max_bytes is None or following.min_bytes <= rule.max_bytes):
                raise SettingError(f"two rules for {rule.collective} overlap at {following.min_bytes} bytes")
        object.__setattr__(self, "rules", ordered)
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))

    @property
    def is_default(self) -> bool:
        """Return True if the policy changes nothing."""
        return not self.rules and not self.parameters

    @property
    def is_uniform(self) -> bool:
        """Return True if no rule depends on size or group, so that plain variables can express the policy."""
        channels = {rule.channels for rule in self.rules}
        return all(rule.covers_all_sizes for rule in self.rules) and len(channels) <= 1

    def setting_for(self, message: Message) -> Setting:
        """Return the setting under which the policy sends a message; a rule for its group comes first."""
        rules = [rule for rule in self.rules if rule.matches(message)]
        if not rules:
            return Setting(parameters=self.parameters)
        rule = min(rules, key=lambda r: r.precedence)
        return Setting(
            algorithm=rule.algorithm, protocol=rule.protocol, channels=rule.channels, parameters=self.parameters
        )

    def setting_by_variables(self, message: Message, *, version: NcclVersion) -> Setting:
        """Return the setting under which a message is sent if plain variables express the whole policy.

        It differs from `setting_for` from NCCL 2.31, where forcing one collective confines the others.
        """
        chosen = self.setting_for(message)
        forced = any(rule.algorithm or rule.protocol for rule in self.rules)
        if not forced or version < BASE_NEEDED_SINCE or not message.collective.is_tunable:
            return chosen
        return chosen if chosen.algorithm or chosen.protocol else replace(chosen, confined=True)

    def by_setting(self, messages: Iterable[Message]) -> dict[Setting, list[Message]]:
        """Return the messages by setting: the launches that measure the policy."""
        groups: dict[Setting, list[Message]] = {}
        for message in messages:
            groups.setdefault(self.setting_for(message), []).append(message)
        return groups

    def digest(self) -> str:
        """Return a short hash of rules and parameters."""
        return hashlib.sha256(json.dumps(self.to_document(), sort_keys=True).encode()).hexdigest()[:12]


def _group(rule: Rule) -> tuple[int, int]:
    return rule.group_size, -1 if rule.spans_nodes is None else int(rule.spans_nodes)


def uniform_policy(setting: Setting, collectives: Iterable[Collective], *, version: NcclVersion) -> Policy:
    """Return the policy that applies one setting to every size of the given collectives, where it is legal."""
    rules = []
    for collective in sorted(collectives):
        applied = setting.applied_to(collective, version=version)
        if applied.algorithm or applied.protocol or applied.channels:
            rule = Rule(
                collective=collective,
                algorithm=applied.algorithm,
                protocol=applied.protocol,
                channels=applied.channels,
            )
            rules.append(rule)
    return Policy(rules=tuple(rules), parameters=setting.parameters)

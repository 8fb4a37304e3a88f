"""Messages of one training step, and its recorded times."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import ClassVar

from ncclt.client.answer import group_label
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective, Message
from ncclt.errors import InputError, UsageError

WHOLE_FILE = "no training step is marked: whole file, number of steps unknown"
"""Note of a workload whose calls are those of everything that was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCalls(Documented):
    """A message and how often one rank sends it in a step.

    Attributes:
        message: what is sent.
        calls_per_step: mean calls per training step, above 0; all calls where the provenance says `whole_file`.
        recorded_us: mean duration of a call in the recording, µs, where the source has it.
    """

    SHAPE: ClassVar = Shape(inlined=("message",), omitted=("recorded_us",))

    message: Message
    calls_per_step: float
    recorded_us: float | None = None

    @property
    def bytes_per_step(self) -> float:
        """Return size_bytes x calls_per_step."""
        return self.message.size_bytes * self.calls_per_step


def _require_calls(name: str, messages: Sequence[MessageCalls]) -> None:
    if not messages:
        raise InputError(f"workload {name!r} has no messages", hint="a workload needs at least one collective")
    if any(not calls.calls_per_step > 0 for calls in messages):
        raise InputError(f"workload {name!r} has a message with no calls per step")


def add_equal(rows: Iterable[MessageCalls]) -> tuple[MessageCalls, ...]:
    """Add up the calls of equal messages; their recorded time is the mean over all calls, None if any has none."""
    found: dict[Message, MessageCalls] = {}
    for row in rows:
        if (before := found.get(row.message)) is not None:
            total, mean_us = before.calls_per_step + row.calls_per_step, None
            if before.recorded_us is not None and row.recorded_us is not None:
                share = row.calls_per_step / total
                mean_us = before.recorded_us + share * (row.recorded_us - before.recorded_us)
            row = MessageCalls(message=row.message, calls_per_step=total, recorded_us=mean_us)
        found[row.message] = row
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPart(Documented):
    """One of the workloads that were merged into another.

    Attributes:
        name: of the part.
        weight: its steps in one step of the merged workload.
        messages: of one step of the part.
    """

    name: str
    weight: float
    messages: tuple[MessageCalls, ...]

    def __post_init__(self) -> None:
        _require_calls(self.name, self.messages)
        if not self.weight > 0:
            raise InputError(f"part {self.name!r} of a merged workload has no weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall(Documented):
    """One call of one recorded step, on the GPU's own time line.

    Attributes:
        message: what is sent.
        start_us: start of its kernel, µs after the first of the step.
        duration_us: run time of the kernel, µs; waiting for other ranks counts.
    """

    SHAPE: ClassVar = Shape(inlined=("message",))

    message: Message
    start_us: float
    duration_us: float


LEFT_OUT = "left out"
"""Key of `Provenance.detail` for the messages that cannot be measured where a study runs, as one sentence."""

RANK_ROLES = "rank_roles"
"""Key of `Provenance.detail` for the number of tables among the ranks, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Documented):
    """Origin of a workload, so that it can be judged and repeated.

    Attributes:
        source: the kind of source: `model`, `kineto`, ...
        detail: facts such as model, framework, bucket cap, version, files; short strings.
        created: ISO date.
        world_size: ranks of the recorded job, 0 where it does not apply or is not known.
        ranks_read: ranks whose files were read, in order.
        steps: complete training steps seen, 0 where not known.
        notes: gaps of the source and assumptions, one sentence each.
        whole_file: calls of the whole source, not of one step.
    """

    SHAPE: ClassVar = Shape(omitted=("whole_file",))

    source: str
    created: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)
    world_size: int = 0
    ranks_read: tuple[int, ...] = ()
    steps: int = 0
    notes: tuple[str, ...] = ()
    whole_file: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Documented):
    """The messages of one training step, with their provenance; those of a whole file where it marks no step.

    Attributes:
        name: short name, as in `--model NAME`.
        provenance: origin of the workload.
        messages: one entry per distinct message, largest share of bytes first.
        step_time_us: median step time in the recording, µs, where the source has it.
        exposed_us: communication not hidden behind compute, µs per step, where the source has it; at most
            `communication_us`, for the rest is waiting for other ranks.
        copied_us: copies within the GPU, µs per step, where the source has them.
        timeline: the calls of the median step of one rank in order of time, where the source has it.
        parts: of a merged workload.
    """

    SHAPE: ClassVar = Shape(
        name="a workload document",
        hint="see profiles/workload.schema.json for the fields",
        schema=1,
        omitted=("step_time_us", "exposed_us", "copied_us", "timeline", "parts"),
    )

    name: str
    provenance: Provenance
    messages: tuple[MessageCalls, ...]
    step_time_us: float | None = None
    exposed_us: float | None = None
    copied_us: float | None = None
    timeline: tuple[TimedCall, ...] = ()
    parts: tuple[WorkloadPart, ...] = ()

    def __post_init__(self) -> None:
        _require_calls(self.name, self.messages)
        ordered = sorted(self.messages, key=lambda m: (-m.bytes_per_step, m.message))
        object.__setattr__(self, "messages", tuple(ordered))
        if self.exposed_us is not None and (sent := self.communication_us):
            object.__setattr__(self, "exposed_us", min(self.exposed_us, sent))

    @property
    def exposed_share(self) -> float | None:
        """Return the share of the recorded communication that computation does not hide; None where it is not known."""
        if self.exposed_us is None or not self.communication_us:
            return None
        return min(1.0, self.exposed_us / self.communication_us)

    @property
    def tunable_share(self) -> float | None:
        """Return the share of the recorded step that no tuning can exceed; None where the step is not known.

        The exposed communication, or all of it where the recording does not show what is exposed.
        """
        most_us = self.communication_us if self.exposed_us is None else self.exposed_us
        if most_us is None or not self.step_time_us or self.provenance.whole_file:
            return None
        return min(1.0, most_us / self.step_time_us)

    @property
    def bytes_per_step(self) -> float:
        """Return the bytes of all messages of a step (tuning sizes, one rank's calls)."""
        return sum(m.bytes_per_step for m in self.messages)

    @property
    def collectives(self) -> frozenset[Collective]:
        """Return the collectives that occur."""
        return frozenset(m.message.collective for m in self.messages)

    @property
    def dtypes(self) -> frozenset[tuple[Collective, str]]:
        """Return the dtypes of each collective."""
        return frozenset((m.message.collective, m.message.dtype) for m in self.messages)

    @property
    def groups(self) -> frozenset[tuple[int, bool]]:
        """Return the process groups by (ranks, spans nodes); 0 ranks = the whole job."""
        return frozenset((m.message.group_size, m.message.spans_nodes) for m in self.messages)

    @property
    def communication_us(self) -> float | None:
        """Return the recorded communication time of a step, µs; None where a message has no recorded time.

        Overlapping calls count in full, so the sum can exceed the step.
        """
        times = [m.recorded_us * m.calls_per_step for m in self.messages if m.recorded_us is not None]
        return sum(times) if len(times) == len(self.messages) else None

    def weights(self) -> tuple[float, ...]:
        """Return the weight of each message, in their order: µs per step where all have a time, else bytes per step."""
        if self.communication_us:
            return tuple((m.recorded_us or 0.0) * m.calls_per_step for m in self.messages)
        return tuple(m.bytes_per_step for m in self.messages)

    def dominant(self, share: float = 0.95) -> tuple[MessageCalls, ...]:
        """Return the smallest set of messages that carries `share` of the weight (see `weights`), largest first."""
        ranked = sorted(zip(self.weights(), self.messages, strict=True), key=lambda pair: -pair[0])
        total = sum(weight for weight, _ in ranked)
        chosen: list[MessageCalls] = []
        covered = 0.0
        for weight, calls in ranked:
            if covered >= share * total:
                break
            chosen.append(calls)
            covered += weight
        return tuple(chosen)

    @property
    def unit(self) -> str:
        """Return the unit of the calls: `step`, or `file` if the number of steps is not known."""
        return "file" if self.provenance.whole_file else "step"

    @property
    def per(self) -> str:
        """Return the unit of a sum over the calls, for a sentence."""
        return "for the whole file" if self.provenance.whole_file else "per step"

    def over_steps(self, steps: int, note: str) -> Workload:
        """Return the workload of a whole file with its calls per training step.

        Args:
            steps: in the file, at least 1.
            note: replaces `WHOLE_FILE`.

        Raises:
            UsageError: the calls are those of a step already, or the source has no steps.
        """
        origin = self.provenance
        if WHOLE_FILE not in origin.notes:
            reason = f"{self.name} counts {origin.steps} steps" if origin.steps else "the calls are per step"
            if origin.whole_file:
                reason = f"{origin.source} has no steps"
            raise UsageError(f"the number of steps cannot be given: {reason}", hint="leave it out")
        if steps < 1:
            raise UsageError(f"a file holds at least 1 step, not {steps}")
        return replace(
            self,
            messages=tuple(replace(calls, calls_per_step=calls.calls_per_step / steps) for calls in self.messages),
            provenance=replace(
                origin,
                steps=steps,
                notes=tuple(note if text == WHOLE_FILE else text for text in origin.notes),
                whole_file=False,
            ),
        )

    def of_group(self, ranks: int, spans_nodes: bool | None = None) -> Workload:
        """Return the workload with the messages of one kind of process group alone.

        Args:
            ranks: of the group; the recorded job's number means messages of the whole job too.
            spans_nodes: as for `Message`; None = the only placement of groups of this size.

        Raises:
            UsageError: no message has such a group, or groups of this size are placed in both ways.
        """
        sizes = {ranks, 0} if ranks == self.provenance.world_size else {ranks}
        members = [
            m for m in self.messages if m.message.group_size in sizes and spans_nodes in (None, m.message.spans_nodes)
        ]
        groups = sorted((size or self.provenance.world_size, spans) for size, spans in self.groups)
        if not members:
            raise UsageError(
                f"{self.name} has no message in groups of {ranks} ranks",
                hint=f"its groups: {'; '.join(group_label(*group) for group in groups)}",
            )
        if len({m.message.spans_nodes for m in members}) > 1:
            raise UsageError(
                f"{self.name} has groups of {ranks} ranks inside a node and across nodes",
                hint=f"choose one: {ranks}:inside or {ranks}:across",
            )
        label = group_label(ranks, members[0].message.spans_nodes)
        origin = replace(self.provenance, detail={**self.provenance.detail, "group": label})
        if ranks == self.provenance.world_size:  # it keeps its ranks in a larger job
            origin = replace(origin, world_size=0)
        return replace(
            self,
            messages=add_equal(replace(m, message=replace(m.message, group_size=ranks)) for m in members),
            provenance=origin,
            exposed_us=None,  # known of all groups together
            timeline=tuple(
                replace(call, message=replace(call.message, group_size=ranks))
                for call in self.timeline
                if call.message in {m.message for m in members}
            ),
        )

    def placed(self, *, nodes: int, gpus_per_node: int) -> Workload:
        """Return the workload as it runs on `nodes` x `gpus_per_node`, with every group size known.

        Messages of the whole job (group size 0, or the size of the recorded world) take the new world's size;
        smaller groups keep theirs and are assumed to fill nodes in rank order.

        Raises:
            UsageError: a group of the workload is larger than the world.
        """
        world_size = nodes * gpus_per_node

        def place(calls: MessageCalls) -> MessageCalls:
            recorded = calls.message.group_size
            whole_job = recorded in (0, self.provenance.world_size)
            size = world_size if whole_job else recorded
            if size > world_size:
                raise UsageError(
                    f"workload {self.name!r} has a group of {size} ranks, "
                    f"but {nodes} x {gpus_per_node} GPUs are {world_size}",
                    hint="use more --nodes or a profile recorded at this scale",
                )
            spans = size > gpus_per_node or (calls.message.spans_nodes and nodes > 1 and not whole_job)
            return replace(calls, message=replace(calls.message, group_size=size, spans_nodes=spans))

        parts = tuple(replace(part, messages=add_equal(map(place, part.messages))) for part in self.parts)
        return replace(self, messages=add_equal(map(place, self.messages)), parts=parts)

    def digest(self) -> str:
        """Return a short hash of what is sent: name, date and notes do not count."""
        rows = sorted((*astuple(m.message), round(float(m.calls_per_step), 9)) for m in self.messages)
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


MAX_WEIGHT = 1e6
"""Largest weight of a part; the smallest is its reciprocal."""


def merge_workloads(parts: Sequence[tuple[Workload, float]], *, name: str, created: str) -> Workload:
    """Merge workloads into one whose step is so many steps of each: calls are weighted, equal messages are added.

    Groups stay apart. Unless all parts were recorded with the same number of ranks, messages of the whole job get
    group size 0. Times per step are added where every part has them; there is no timeline.

    Args:
        created: ISO date.

    Raises:
        UsageError: there are fewer than two parts, two have the same name, one has the name of the merged workload, is
            merged itself or has no steps, or a weight is not between 1 / `MAX_WEIGHT` and `MAX_WEIGHT`.
    """
    _check_parts(parts, name)
    sizes = [workload.provenance.world_size for workload, _ in parts]
    has_same_size = len(set(sizes)) == 1
    weighted = tuple(
        WorkloadPart(
            name=workload.name,
            weight=float(weight),
            messages=workload.messages if has_same_size else _over_whole_job(workload),
        )
        for workload, weight in parts
    )
    notes = []
    if not has_same_size:
        recorded = ", ".join(
            f"{workload.name} with {workload.provenance.world_size or 'any number of'} ranks" for workload, _ in parts
        )
        notes.append(f"recorded: {recorded}; messages of the whole job keep their size")

    def add_up(times_us: Sequence[float | None]) -> float | None:
        parts_us = [part.weight * us for part, us in zip(weighted, times_us, strict=True) if us is not None]
        return sum(parts_us) if len(parts_us) == len(weighted) else None

    return Workload(
        name=name,
        provenance=Provenance(
            source="merge",
            created=created,
            detail={"parts": " + ".join(f"{part.weight:g} x {part.name}" for part in weighted)},
            world_size=sizes[0] if has_same_size else 0,
            notes=tuple(notes),
        ),
        messages=add_equal(
            replace(calls, calls_per_step=part.weight * calls.calls_per_step)
            for part in weighted
            for calls in part.messages
        ),
        step_time_us=add_up([workload.step_time_us for workload, _ in parts]),
        exposed_us=add_up([workload.exposed_us for workload, _ in parts]),
        copied_us=add_up([workload.copied_us for workload, _ in parts]),
        parts=weighted,
    )


def _check_parts(parts: Sequence[tuple[Workload, float]], name: str) -> None:
    names = [workload.name for workload, _ in parts]
    if len(names) < 2:
        raise UsageError(
            f"a merge needs two or more workloads, not {len(names)}", hint="`ncclt profile list` lists all"
        )
    if repeated := [part for part in names if names.count(part) > 1]:
        raise UsageError(
            f"{repeated[0]} is named {names.count(repeated[0])} times", hint="name it once, with a larger weight"
        )
    if name in names:
        raise UsageError(f"{name} is one of its own parts", hint="choose another name for the merged workload")
    for workload, weight in parts:
        if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
            hint = f"a weight is a number from {1 / MAX_WEIGHT:f} to {MAX_WEIGHT:.0f}"
            raise UsageError(f"{weight:g} cannot be the weight of {workload.name}", hint=hint)
        if workload.parts:
            inner = " ".join(part.name for part in workload.parts)
            raise UsageError(f"{workload.name} is a merged workload", hint=f"name its parts: {inner}")
        if workload.provenance.whole_file:
            raise UsageError(
                f"{workload.name} holds the calls of a whole file, not those of one step",
                hint="import it again with `ncclt profile import --steps N`",
            )


def _over_whole_job(workload: Workload) -> tuple[MessageCalls, ...]:
    """Return the messages with group size 0 wherever the group is the whole recorded job."""
    whole = (0, workload.provenance.world_size)
    return add_equal(
        replace(calls, message=replace(calls.message, group_size=0, spans_nodes=False))
        if calls.message.group_size in whole
        else calls
        for calls in workload.messages
    )

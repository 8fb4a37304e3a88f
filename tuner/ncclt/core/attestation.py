"""Did a recommendation take effect? What a job was given, what was observed, and the record of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective
from ncclt.core.policy import Policy
from ncclt.errors import InputError

MOST_ROWS = 200
"""Most rows of an attestation: differences first, then by calls."""


class Form(StrEnum):
    """Form in which a job got its policy."""

    TABLE = "table"
    VARIABLES = "variables"


class Effect(StrEnum):
    """Outcome of an attestation."""

    TOOK_EFFECT = "took-effect"
    PARTLY = "partly"
    NOT_AT_ALL = "not-at-all"
    UNKNOWN = "unknown"


class RowState(StrEnum):
    """Outcome for one kind of message."""

    AS_WANTED = "as-wanted"
    DIFFERS = "differs"
    UNCERTAIN = "uncertain"
    NOT_SEEN = "not-seen"


class CallOutcome(StrEnum):
    """Outcome of a call: three words of the plugin (docs/internals/tuner-plugin.md), `chosen` for a line of the log."""

    APPLIED = "applied"
    UNAVAILABLE = "unavailable"
    UNMATCHED = "unmatched"
    CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredPolicy:
    """Delivered policy of a job.

    Attributes:
        recommendation, cluster, model: ids and names.
        nccl_version: NCCL version of the measurement.
        ranks: ranks of the whole job.
        form: delivery form.
        policy: rules; NCCL chooses everything else.
        variables: (name, value) of its variables.
    """

    recommendation: str
    cluster: str
    model: str
    nccl_version: str
    ranks: int
    form: Form
    policy: Policy
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCall:
    """Calls of one kind, according to one source.

    Attributes:
        collective: the operation.
        size_bytes: the tuning size; 0 where the source has only one rank's part, of an unknown group.
        group_size: ranks of the communicator; 0 = not known.
        choice: `ring/simple/8`; empty = not recorded. The number of channels may be missing.
        outcome: what the source says became of them.
        calls: number of calls.
        remark: the reason, if the source has one.
    """

    collective: Collective
    size_bytes: int
    group_size: int
    choice: str
    outcome: CallOutcome
    calls: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvidence(Documented):
    """Sources with the same facts about a job's processes.

    Attributes:
        kind: `plugin-report` or `nccl-log`.
        nccl_version: empty = not recorded.
        table, checksum: of the table that the plugin used; empty in a log.
        not_in_use: reason why the plugin used no table.
        ranks, nodes: of the communicators; 0 in a log.
        count: reports or logged processes.
    """

    kind: str
    nccl_version: str
    table: str = ""
    checksum: str = ""
    not_in_use: str = ""
    ranks: int = 0
    nodes: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything observed of one job.

    Attributes:
        sources: with facts about its processes.
        calls: by kind.
        variables: name -> values in NCCL's log; more than one where processes differ.
        tells_variables: the log has INIT or ENV lines, so a variable that is not in it was not set.
        tuner_lines: what the log says about a tuner plugin, ours or another.
        p2p_chunks: (nodes of a communicator, 0 = not logged; chunk of send_recv and all_to_all in bytes), each once.
        hosts: number of hosts seen.
        notes: what the sources do not show.
        evidence: hash of the files, which distinguishes jobs.
    """

    sources: tuple[LogEvidence, ...]
    calls: tuple[ObservedCall, ...]
    variables: Mapping[str, tuple[str, ...]]
    tells_variables: bool = False
    tuner_lines: tuple[str, ...] = ()
    p2p_chunks: tuple[tuple[int, int], ...] = ()
    hosts: int
    notes: tuple[str, ...] = ()
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOutcome(Documented):
    """One kind of message: the choice that was wanted, and the one used.

    Attributes:
        collective, size_bytes, group_size: the message; 0 = not known or, for a rule that met no message, any.
        wanted, used: `ring/simple/8`; `*` = left to NCCL. Empty `used`: not seen.
        calls: number of calls; 0 for a rule that met no message.
        state: the outcome.
        reason: cause of the difference; empty where there is none.
    """

    collective: Collective
    size_bytes: int
    group_size: int
    wanted: str
    used: str
    calls: int
    state: RowState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation(Documented):
    """Comparison of one job with the recommendation that it was given.

    Attributes:
        id: hash of the content but for `created`, so that the same finding about the same files is stored once.
        created: ISO time.
        recommendation: id of the revision that the job was given.
        cluster, model: names of cluster and workload.
        form: in which the job was given it.
        effect: the outcome.
        reason: one sentence.
        calls_as_wanted, calls_differing, calls_unruled: calls that the policy covers, and those it leaves to NCCL.
        rows: at most `MOST_ROWS`.
        sources: with facts about its processes.
        hosts: number of hosts seen.
        notes: caveats for the reader.
        evidence: hash of the files, which distinguishes jobs.
    """

    SHAPE: ClassVar = Shape(name="an attestation", hint="attest again with `ncclt attest`", schema=1)

    id: str
    created: str
    recommendation: str
    cluster: str
    model: str
    form: Form
    effect: Effect
    reason: str
    calls_as_wanted: int
    calls_differing: int
    calls_unruled: int
    rows: tuple[MessageOutcome, ...]
    sources: tuple[LogEvidence, ...]
    hosts: int
    notes: tuple[str, ...]
    evidence: str

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read an attestation.

        Raises:
            InputError: the document is not one, of another schema, or its id is not that of its content.
        """
        attestation = super(Attestation, cls).from_document(document)  # slots=True breaks a bare super()
        if attestation.id != content_id(content_of(attestation)):
            raise InputError(
                f"the attestation {attestation.id} does not have the id of its content", hint=cls.SHAPE.hint
            )
        return attestation


def content_of(attestation: Attestation) -> dict[str, Any]:
    """Return an attestation without its id and its time."""
    document = attestation.to_document()
    return {name: value for name, value in document.items() if name not in ("schema", "id", "created")}


def content_id(content: Mapping[str, Any]) -> str:
    """Return the id of a document of `content_of`."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

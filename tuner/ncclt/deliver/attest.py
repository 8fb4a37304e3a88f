"""Compare a job's own reports and logs with what it was given: message by message, and as one verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ncclt.core.algo_proto_text import COLLECTIVE_WORDS, legal_algo_protos, remaining_algo_protos
from ncclt.core.algorithms import Algorithm
from ncclt.core.attestation import (
    MOST_ROWS,
    Attestation,
    CallOutcome,
    DeliveredPolicy,
    Effect,
    Form,
    MessageOutcome,
    Observed,
    ObservedCall,
    RowState,
    content_id,
    content_of,
)
from ncclt.core.message import format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy, Rule
from ncclt.nccl.p2p_chunk import DOUBLED_SINCE, find_chunk_doubt, find_chunk_problem
from ncclt.nccl.parameters import COMPETES_WITH_COMPUTE, SET_BY_RULES

CHOICE_VARIABLES = tuple(sorted(f"NCCL_{name}" for name in {*SET_BY_RULES, COMPETES_WITH_COMPUTE}))
"""Variables that decide algorithm, protocol and channels besides any table."""

_ORDER = (RowState.DIFFERS, RowState.UNCERTAIN, RowState.AS_WANTED, RowState.NOT_SEEN)
_ALGORITHMS = frozenset(algorithm.value for algorithm in Algorithm)

OWN_LINE = "TUNER/ncclt:"
"""Prefix of our plugin's lines in NCCL's log (plugin/communicator.c)."""

_NOT_USED = "is not used"

_OF_OTHER_RANKS = re.compile(r"none of its \d+ rows is for (\d+) ranks")

_USING = re.compile(r"Using (?:tuner plugin )?ncclt\b")
"""NCCL's line about a tuner plugin that it loaded; older versions have the optional words."""


def attest(delivered: DeliveredPolicy, observed: Observed, *, created: str) -> Attestation:
    """Compare what was used with what was delivered.

    Args:
        created: ISO time.
    """
    causes = _causes(delivered, observed)
    rows: Counter[MessageOutcome] = Counter()
    unruled = 0
    met: set[Rule] = set()
    for use in observed.calls:
        if rules := _rules_for(use, delivered):
            met.update(rules)
            rows[_row(use, rules, causes)] += use.calls
        else:
            unruled += use.calls
    counted = [replace(row, calls=calls) for row, calls in rows.items()]
    calls = {state: sum(row.calls for row in counted if row.state is state) for state in RowState}
    counted += [_unmet_row(rule) for rule in delivered.policy.rules if rule not in met]
    counted.sort(
        key=lambda r: (_ORDER.index(r.state), -r.calls * max(r.size_bytes, 1), r.collective, r.size_bytes, r.used)
    )
    effect, reason = _judge(delivered, observed, calls, causes)
    if effect is Effect.TOOK_EFFECT and _find_chunk_problem(delivered, observed):
        effect = Effect.PARTLY
    doubt = find_chunk_doubt(_numbers(delivered), observed.p2p_chunks) if _may_double(delivered) else ""
    attestation = Attestation(
        id="",
        recommendation=delivered.recommendation,
        cluster=delivered.cluster,
        model=delivered.model,
        form=delivered.form,
        effect=effect,
        reason=reason,
        calls_as_wanted=calls[RowState.AS_WANTED],
        calls_differing=calls[RowState.DIFFERS],
        calls_unruled=unruled,
        rows=tuple(counted[:MOST_ROWS]),
        sources=observed.sources,
        hosts=observed.hosts,
        notes=(*observed.notes, *_notes(counted), *filter(None, [doubt])),
        evidence=observed.evidence,
        created=created,
    )
    return replace(attestation, id=content_id(content_of(attestation)))


def has_our_plugin(tuner_lines: Iterable[str]) -> bool:
    """Return True if NCCL's log shows ncclt's plugin loaded; its path alone, as in `Could not find`, does not count."""
    return any(line.startswith(OWN_LINE) or _USING.search(line) for line in tuner_lines)


def policy_of_variables(variables: Mapping[str, str], version: NcclVersion) -> Policy:
    """Return the policy that variables, as ncclt writes them, force on every size of each collective.

    Raises:
        SettingError: a word that ncclt never writes.
    """
    channel_limit = variables.get("NCCL_MAX_CTAS") or variables.get("NCCL_MAX_NCHANNELS")
    channels = int(channel_limit) if channel_limit else None
    rules = []
    for collective in COLLECTIVE_WORDS:
        pairs, legal = remaining_algo_protos(variables, collective, version), legal_algo_protos(collective, version)
        algorithms, protocols = {algorithm for algorithm, _ in pairs}, {protocol for _, protocol in pairs}
        # A pair without an alternative is not forced.
        has_algorithm = len(algorithms) == 1 and algorithms != {algorithm for algorithm, _ in legal}
        has_protocol = len(protocols) == 1 and protocols != {protocol for _, protocol in legal}
        rule = Rule(
            collective=collective,
            algorithm=next(iter(algorithms)) if has_algorithm else None,
            protocol=next(iter(protocols)) if has_protocol else None,
            channels=channels,
        )
        if rule.algorithm or rule.protocol or rule.channels:
            rules.append(rule)
    return Policy(rules=tuple(rules))


def _rules_for(use: ObservedCall, delivered: DeliveredPolicy) -> list[Rule]:
    """Return the rules that may apply to a call: one, or several where its group or size is not known."""
    rules = []
    for rule in delivered.policy.rules:
        group = rule.group_size
        if delivered.form is Form.TABLE and group == 0:
            group = delivered.ranks  # the row of a table for the whole job has its rank count
        fits = use.size_bytes == 0 or (
            rule.min_bytes <= use.size_bytes and (rule.max_bytes is None or use.size_bytes <= rule.max_bytes)
        )
        if rule.collective is use.collective and fits and (use.group_size == 0 or group in (0, use.group_size)):
            rules.append(rule)
    if use.group_size and use.size_bytes and rules:
        # Not every source says how groups of one size are placed.
        exact = max(rule.group_size for rule in rules)
        return [rule for rule in rules if rule.group_size == exact]
    return rules


def _row(use: ObservedCall, rules: list[Rule], causes: list[str]) -> MessageOutcome:
    """Return the row of a call, without the number of calls."""
    wanted = " or ".join(dict.fromkeys(_wanted_choice(rule) for rule in rules))
    row = MessageOutcome(
        collective=use.collective,
        size_bytes=use.size_bytes,
        group_size=use.group_size,
        wanted=wanted,
        used=use.choice,
        calls=0,
        state=RowState.DIFFERS,
    )
    why = "; ".join(causes)
    if use.outcome is CallOutcome.UNAVAILABLE:
        why = why or "NCCL does not offer this choice for the call: links, data type or a variable exclude it"
        return replace(row, used="", reason=why)
    if use.outcome is CallOutcome.UNMATCHED:
        return replace(row, used="", reason=use.remark or why or "the table that the job used has no row for it")
    fits = [_matches_rule(use, rule) for rule in rules]
    if all(fits):
        return replace(row, state=RowState.AS_WANTED)
    if any(fits) or use.size_bytes == 0:
        reason = "the log does not give the ranks of this group, so its rule is unknown"
        return replace(row, state=RowState.UNCERTAIN, reason=reason)
    if use.choice.partition("/")[0] not in _ALGORITHMS:
        return replace(row, reason="NCCL used a kernel that bypasses the tuner (symmetric memory or copy engine)")
    return replace(row, reason=why or "NCCL chose otherwise")


def _matches_rule(use: ObservedCall, rule: Rule) -> bool:
    """Return True if a call used the choice of a rule.

    Fewer channels than requested are right: NCCL's scheduler gives small and grouped calls fewer, and nothing can
    prevent that (src/enqueue.cc). More are a different choice. What the plugin requested must be equal.
    """
    algorithm, protocol, number = [*use.choice.split("/", 2), "", ""][:3]
    if rule.algorithm not in (None, algorithm) or rule.protocol not in (None, protocol):
        return False
    if rule.channels is None or not number.isdecimal():
        return rule.channels is None or use.outcome is CallOutcome.CHOSEN
    return int(number) <= rule.channels if use.outcome is CallOutcome.CHOSEN else int(number) == rule.channels


def _causes(delivered: DeliveredPolicy, observed: Observed) -> list[str]:
    """Return the causes of a difference that the sources show, most likely first."""
    sources, lines = observed.sources, observed.tuner_lines
    groups = {rule.group_size or delivered.ranks for rule in delivered.policy.rules}
    # The table needs no row for a communicator of a size that no rule has.
    unused = [source.not_in_use for source in sources if source.not_in_use and source.ranks in groups]
    causes = [f"the plugin used no table: {why}" for why in unused]
    if strangers := {source.table for source in sources if source.table} - {delivered.recommendation}:
        causes.append(f"the job used the table of {', '.join(sorted(strangers))}")
    values = {name: " and ".join(observed.variables[name]) for name in observed.variables}
    if delivered.form is Form.TABLE:
        refusals = [line for line in lines if _refuses(line, groups)]
        causes += [f"the plugin said: {line.removeprefix(OWN_LINE).strip()}" for line in refusals[:1]]
        is_loaded = any(source.kind == "plugin-report" for source in sources) or has_our_plugin(lines)
        if not is_loaded and (lines or observed.tells_variables):
            causes.append(f"the plugin was not loaded{f': {lines[0]}' if lines else ''}")
        limits = [name for name in CHOICE_VARIABLES if name in values and name not in dict(delivered.variables)]
        causes += [f"{name}={values[name]} in the job limits what a table can choose" for name in limits]
    for name, value in delivered.variables:
        if name not in values:
            if observed.tells_variables:
                causes.append(f"the processes did not get {name}: a container or launcher did not pass it on")
        elif set(observed.variables[name]) != {value}:
            causes.append(f"{name} was {values[name]} in the job, not {value}")
    if problem := _find_chunk_problem(delivered, observed):
        causes.append(problem)
    versions = {source.nccl_version.partition("+")[0] for source in sources} - {"", delivered.nccl_version}
    if versions:
        causes.append(f"the job loaded NCCL {', '.join(sorted(versions))}, not {delivered.nccl_version}")
    return list(dict.fromkeys(causes))


def _find_chunk_problem(delivered: DeliveredPolicy, observed: Observed) -> str:
    """Return the difference between the P2P chunk that was delivered and the logged one; empty = none was seen."""
    return find_chunk_problem(_numbers(delivered), observed.p2p_chunks, ratio=None if _may_double(delivered) else 1)


def _numbers(delivered: DeliveredPolicy) -> dict[str, int]:
    return {name.removeprefix("NCCL_"): int(value) for name, value in delivered.variables if value.isdecimal()}


def _may_double(delivered: DeliveredPolicy) -> bool:
    """Return True if this NCCL doubles the chunk between nodes on some hosts; a delivery does not name the CPU."""
    return NcclVersion.parse(delivered.nccl_version) >= DOUBLED_SINCE


def _refuses(line: str, groups: Collection[int]) -> bool:
    """Return True if the plugin logs that it did not use a table that has rows for such a communicator."""
    if not line.startswith(OWN_LINE) or _NOT_USED not in line:
        return False
    ranks = _OF_OTHER_RANKS.search(line)
    return ranks is None or int(ranks[1]) in groups


def _judge(
    delivered: DeliveredPolicy, observed: Observed, calls: Mapping[RowState, int], causes: list[str]
) -> tuple[Effect, str]:
    right, wrong = calls[RowState.AS_WANTED], calls[RowState.DIFFERS]
    why = f": {'; '.join(causes)}" if causes else ""
    reports = [source for source in observed.sources if source.kind == "plugin-report"]
    tables = {(report.table, report.checksum) for report in reports if not report.not_in_use}
    shapes = {(report.ranks, report.nodes) for report in reports}
    states = {(report.ranks, report.nodes, report.not_in_use) for report in reports}
    if len(tables) > 1 or len(states) > len(shapes):
        danger = "the ranks did not use the same table: NCCL can hang or give wrong results then"
        return _effect(right, 1), f"{danger}{why}"
    if not delivered.policy.rules:
        if not observed.tells_variables:
            return Effect.UNKNOWN, "process-wide variables alone were delivered, and no log with ENV lines shows them"
        right = sum(set(observed.variables.get(name, ())) == {value} for name, value in delivered.variables)
        wrong = len(delivered.variables) - right
        return _effect(right, wrong), f"NCCL read {right} of {right + wrong} variables as they were delivered{why}"
    if right + wrong == 0:
        if causes and not calls[RowState.UNCERTAIN] and (observed.tells_variables or reports):
            return Effect.NOT_AT_ALL, "; ".join(causes)
        if not observed.sources:
            return Effect.UNKNOWN, (
                "there is no report and no log: NCCL was not used, the plugin was not loaded (did a container pass "
                "NCCL_TUNER_PLUGIN and NCCLT_PLUGIN_REPORT on?), or the processes were killed"
            )
        return Effect.UNKNOWN, f"no call certainly matched a rule{why}"
    return _effect(right, wrong), f"{right} of {right + wrong} calls with a rule used its choice{why}"


def _effect(right: int, wrong: int) -> Effect:
    return Effect.TOOK_EFFECT if not wrong else Effect.PARTLY if right else Effect.NOT_AT_ALL


def _wanted_choice(rule: Rule) -> str:
    parts = [rule.algorithm.value if rule.algorithm else "*", rule.protocol.value if rule.protocol else "*"]
    return "/".join([*parts, str(rule.channels)] if rule.channels else parts)


def _unmet_row(rule: Rule) -> MessageOutcome:
    end = "any size" if rule.max_bytes is None else format_bytes(rule.max_bytes)
    return MessageOutcome(
        collective=rule.collective,
        size_bytes=0,
        group_size=rule.group_size,
        wanted=_wanted_choice(rule),
        used="",
        calls=0,
        state=RowState.NOT_SEEN,
        reason=f"no such message was observed ({format_bytes(rule.min_bytes)} to {end})",
    )


def _notes(rows: list[MessageOutcome]) -> list[str]:
    notes = (
        [f"{count_noun(len(rows) - MOST_ROWS, 'more kind')} of messages not listed"] if len(rows) > MOST_ROWS else []
    )
    fewer = 0
    for row in rows:
        wanted, used = row.wanted.rpartition("/")[2], row.used.rpartition("/")[2]
        if row.state is RowState.AS_WANTED and wanted.isdecimal() and used.isdecimal():
            fewer += int(used) < int(wanted)
    if fewer:
        notes.append(
            f"{count_noun(fewer, 'kind')} of messages ran on fewer channels than requested: NCCL gives small and "
            "grouped calls fewer"
        )
    return notes

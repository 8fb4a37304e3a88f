"""From a policy to the environment variables of one NCCL version.

Variables can express less than a policy: one choice per collective for every size and group, one number of channels for
everything. What they cannot express is never approximated: a rule that is dropped takes with it all that was measured
together with it, and the reason is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclt.core.algo_proto_text import (
    BASE_ALGORITHMS,
    BASE_NEEDED_SINCE,
    BASE_PROTOCOLS,
    COLLECTIVE_WORDS,
    PER_COLLECTIVE_SINCE,
    AlgoProto,
    legal_algo_protos,
    remaining_algo_protos,
    ring_stays,
    write_algorithms,
    write_protocols,
)
from ncclt.core.algorithms import Algorithm, Protocol, is_legal, serves_every_call
from ncclt.core.message import Collective, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule, uniform_policy
from ncclt.core.setting import Setting, check_setting, max_channels
from ncclt.errors import SettingError
from ncclt.nccl.numerics import describe_lost_guard
from ncclt.nccl.parameters import SET_BY_RULES, check_value, parameter

CTAS_SINCE = NcclVersion(2, 17)
"""From here MAX_CTAS; MAX_NCHANNELS is deprecated from the same version on."""

TUNER_API_SINCE = NcclVersion(2, 21)
"""From here NCCL has a tuner API that ncclt's plugin implements (v2); before, no table takes effect."""

_MEASURED_TOGETHER = "it was measured together with rules that variables cannot express"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Plain variables of a policy, and what they cannot deliver.

    Attributes:
        variables: (name with `NCCL_`, value), sorted by name.
        lost: one sentence for everything that is not delivered, and for every side effect.
        complete: every rule and parameter of the policy is in `variables`. False = launching with them does not
            measure the policy.
        reasons: why rules are not delivered, each once, without the rules.
    """

    variables: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
    complete: bool = True
    reasons: tuple[str, ...] = ()


def compile_policy(policy: Policy, *, version: NcclVersion, collectives: Iterable[Collective]) -> Compiled:
    """Return the variables that deliver a policy to jobs, for one NCCL version.

    No call of a job may fail: every collective keeps an algorithm that serves each of its calls.

    Raises:
        SettingError: a rule that this NCCL does not implement, a parameter that is unknown or outside its domain, or
            (a bug) a result that would leave some collective without an algorithm.
    """
    return _compile(policy, version, frozenset(collectives), delivered=True)


def variables_for_setting(setting: Setting, *, version: NcclVersion, collectives: Iterable[Collective]) -> Compiled:
    """Return the variables under which a trial of one setting is launched.

    A trial forces exactly its setting, even an algorithm that some calls lack: a failing call is a failed trial.

    Raises:
        SettingError: the setting forces nothing legal on any of the collectives, or as for `compile_policy`.
    """
    workload = frozenset(collectives)
    check_setting(setting, workload, version=version)
    return _compile(uniform_policy(setting, workload, version=version), version, workload, delivered=False)


def _compile(policy: Policy, version: NcclVersion, workload: frozenset[Collective], *, delivered: bool) -> Compiled:
    rules = tuple(r for r in policy.rules if r.algorithm or r.protocol or r.channels is not None)
    for rule in rules:
        check_rule(rule, version)
    refused = _refused_parameters(policy, version)
    reasons = _inexpressible(policy, rules, workload, version) | (_failing(rules) if delivered else {})
    expressible = tuple(rule for rule in rules if rule not in reasons)
    # Channels and parameters apply to the whole process; so does a plain list before 2.24 and a base list from 2.31.
    of_process = bool(policy.parameters) or any(rule.channels is not None for rule in rules)
    if reasons and (of_process or not PER_COLLECTIVE_SINCE <= version < BASE_NEEDED_SINCE):
        expressible = ()
        reasons = {rule: reasons.get(rule, _MEASURED_TOGETHER) for rule in rules}
    lost = [f"{rule_label(rule)}: {reason}" for rule, reason in reasons.items()]
    if reasons:
        lost += [
            f"NCCL_{name}={value}: {_MEASURED_TOGETHER}" for name, value in policy.parameters if name not in refused
        ]
        if version >= TUNER_API_SINCE:
            lost.append("rules that variables cannot express need the plugin: use --format tuner-csv")
    lost += refused.values()
    variables = _variables(expressible, version)
    if not reasons:
        variables |= {parameter(n).variable: str(v) for n, v in policy.parameters if n not in refused}
    _verify(variables, expressible, version, delivered=delivered)
    lost += _side_effects(variables, expressible, workload, version)
    return Compiled(
        variables=tuple(sorted(variables.items())),
        lost=tuple(lost),
        complete=not reasons and not refused,
        reasons=tuple(dict.fromkeys([*reasons.values(), *refused.values()])),
    )


def rule_label(rule: Rule) -> str:
    """Return a rule as text: `all_reduce 0 B to 64 KiB: tree/ll c=8`."""
    chosen = Setting(algorithm=rule.algorithm, protocol=rule.protocol, channels=rule.channels).label
    where = rule.collective.value
    if rule.min_bytes or rule.max_bytes is not None:
        end = "any size" if rule.max_bytes is None else format_bytes(rule.max_bytes)
        where += f" {format_bytes(rule.min_bytes)} to {end}"
    if rule.group_size:
        where += f" in groups of {rule.group_size}"
    if rule.spans_nodes is not None:
        where += " across nodes" if rule.spans_nodes else " inside a node"
    return f"{where}: {chosen}"


def check_rule(rule: Rule, version: NcclVersion) -> None:
    """Refuse a rule that this NCCL does not implement.

    Raises:
        SettingError: no such algorithm and protocol for the collective, or an impossible number of channels.
    """
    if not is_legal(rule.collective, rule.algorithm, rule.protocol, version=version):
        raise SettingError(
            f"NCCL {version} does not implement {rule_label(rule)}", hint="tune again for this NCCL version"
        )
    if rule.channels is not None and not 1 <= rule.channels <= max_channels(version):
        raise SettingError(f"NCCL {version} has 1 to {max_channels(version)} channels, not {rule.channels}")


def _refused_parameters(policy: Policy, version: NcclVersion) -> dict[str, str]:
    """Return name -> reason for each parameter that is not written; refuse unknown ones."""
    refused = {}
    for name, value in policy.parameters:
        row = parameter(name)
        if row.name in SET_BY_RULES or row.name != name:
            raise SettingError(f"{name!r} cannot be a parameter of a policy", hint="rules say algorithm and channels")
        if not row.exists_in(version):
            refused[name] = f"{row.variable}={value}: NCCL {version} does not know it (it came with {row.since})"
        elif row.is_deprecated_in(version):
            refused[name] = f"{row.variable}={value}: deprecated since NCCL {row.deprecated_since}"
        elif not row.safe:
            refused[name] = f"{row.variable}={value}: ncclt never sets it: {row.note or 'it has not been reviewed'}"
        else:
            check_value(name, value, version)
    return refused


def _inexpressible(
    policy: Policy, rules: tuple[Rule, ...], workload: frozenset[Collective], version: NcclVersion
) -> dict[Rule, str]:
    """Return rule -> reason for the rules that variables cannot express."""
    if not policy.is_uniform:
        channels = {rule.channels for rule in rules}
        reason = "variables set one number of channels for all collectives" if len(channels) > 1 else _MEASURED_TOGETHER
        by_size = "variables cannot depend on size or group"
        return {rule: reason if rule.covers_all_sizes else by_size for rule in rules}
    unruled = frozenset(c for c in workload if c.is_tunable) - {rule.collective for rule in rules}
    reasons: dict[Rule, str] = {}
    for rule in rules:
        if rule.protocol is Protocol.LL128:
            reasons[rule] = "forcing LL128 with NCCL_PROTO bypasses NCCL's safety check"
        elif rule.channels is not None and unruled:
            reasons[rule] = f"its channel cap would also apply to {_names(unruled)}"
        elif rule.algorithm not in (None, Algorithm.RING) and ring_stays(rule.collective, version):
            reasons[rule] = f"NCCL {version} always enables ring for {rule.collective}"
    if version < PER_COLLECTIVE_SINCE and not reasons:
        algo_protos = {(rule.algorithm, rule.protocol) for rule in rules}
        forced = any(algorithm or protocol for algorithm, protocol in algo_protos)
        if forced and (len(algo_protos) > 1 or unruled):
            conflict = f"{_names(unruled)} would get it too" if unruled else "the rules differ"
            reasons = dict.fromkeys(rules, f"NCCL {version} takes one choice for all collectives: {conflict}")
    return reasons


def _failing(rules: tuple[Rule, ...]) -> dict[Rule, str]:
    """Return rule -> reason for the rules under which some call of their collective would fail.

    Naming Ring as well would save that call, but leave the choice for all others to NCCL, which is not what was
    measured. A table is harmless: NCCL's choice contains only what is available for a call.
    """
    return {
        rule: f"NCCL lacks {rule.algorithm} for some data types, operations or communicators: those calls would fail"
        for rule in rules
        if rule.algorithm and not serves_every_call(rule.collective, rule.algorithm)
    }


def _variables(rules: tuple[Rule, ...], version: NcclVersion) -> dict[str, str]:
    variables = {}
    algorithms = {rule.collective: rule.algorithm for rule in rules if rule.algorithm}
    protocols = {rule.collective: rule.protocol for rule in rules if rule.protocol}
    if algorithms:
        variables["NCCL_ALGO"] = write_algorithms(algorithms, version)
    if protocols:
        variables["NCCL_PROTO"] = write_protocols(protocols, version)
    unit = "CTAS" if version >= CTAS_SINCE else "NCHANNELS"
    for rule in rules:
        if rule.channels is not None:
            # No minimum: beyond what NCCL itself opens, it would take SMs from concurrent compute.
            variables[f"NCCL_MAX_{unit}"] = str(rule.channels)
    return variables


def _verify(variables: Mapping[str, str], rules: tuple[Rule, ...], version: NcclVersion, *, delivered: bool) -> None:
    """Read the variables back: no call may be without an algorithm, no rule may have changed.

    All collectives are checked: a job may broadcast or gather although its workload does not show it.
    """
    wanted = {rule.collective: rule for rule in rules}
    for collective in COLLECTIVE_WORDS:
        remaining = remaining_algo_protos(variables, collective, version)
        if not any(not delivered or serves_every_call(collective, algorithm) for algorithm, _ in remaining):
            raise SettingError(
                f"NCCL {version} would have no algorithm left for calls of {collective}", hint="this is a bug in ncclt"
            )
        rule = wanted.get(collective)
        if rule and not all(_fits(algo_proto, rule) for algo_proto in remaining):
            raise SettingError(f"NCCL {version} would not do {rule_label(rule)}", hint="this is a bug in ncclt")


def _fits(algo_proto: AlgoProto, rule: Rule) -> bool:
    algorithm, protocol = algo_proto
    return rule.algorithm in (None, algorithm) and rule.protocol in (None, protocol)


def _side_effects(
    variables: Mapping[str, str], rules: tuple[Rule, ...], workload: frozenset[Collective], version: NcclVersion
) -> list[str]:
    """Return the effects of the variables beyond the policy, one sentence each."""
    notes = []
    ruled = {rule.collective: rule for rule in rules}
    for collective in COLLECTIVE_WORDS if version >= BASE_NEEDED_SINCE else ():
        rule = ruled.get(collective)
        legal = [pair for pair in legal_algo_protos(collective, version) if rule is None or _fits(pair, rule)]
        lost: list[str] = []
        if "NCCL_ALGO" in variables and not (rule and rule.algorithm):
            lost += sorted({algorithm.value for algorithm, _ in legal} - {a.value for a in BASE_ALGORITHMS})
        if "NCCL_PROTO" in variables and not (rule and rule.protocol):
            lost += sorted({protocol.value for _, protocol in legal} - {p.value for p in BASE_PROTOCOLS})
        if lost and collective in workload:
            notes.append(f"{collective} can no longer use {', '.join(lost)}: NCCL {version} needs a base list")
    if version < PER_COLLECTIVE_SINCE and ("NCCL_ALGO" in variables or "NCCL_PROTO" in variables):
        notes.append(f"NCCL {version} applies the choice to every collective, also outside the workload")
    if guard := describe_lost_guard(rules, version):
        notes.append(guard)
    untunable = frozenset(c for c in workload if not c.is_tunable)
    if untunable and any(rule.channels is not None for rule in rules):
        notes.append(f"the channel cap also applies to {_names(untunable)}")
    return notes


def _names(collectives: Iterable[Collective]) -> str:
    return ", ".join(sorted(c.value for c in collectives))

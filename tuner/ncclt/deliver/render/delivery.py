"""What a recommendation delivers in one form, compiled once for its NCCL, with the remarks on it.

Names, reasons and notes are free text from the store: a renderer writes them through
`ncclt.client.answer.comment_lines`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation
from ncclt.nccl.compile import TUNER_API_SINCE, check_rule, compile_policy, rule_label
from ncclt.nccl.parameters import COMPETES_WITH_COMPUTE

TABLE_FORMAT = "tuner-csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One form of a recommendation: rows of a table and the variables that it needs, or variables alone.

    Attributes:
        recommendation: what was published.
        proven: the policy of this form with its verdict; None where variables can express none of what was proven.
        rules: those that become rows of a table, exact groups first; empty for variables.
        variables: (name with `NCCL_`, value), sorted by name.
        lost: one sentence for everything that is not delivered, and for every side effect.
    """

    recommendation: Recommendation
    proven: PolicyVerdict | None
    rules: tuple[Rule, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def version(self) -> NcclVersion:
        """Return the NCCL that it was measured with and is delivered to."""
        return self.recommendation.fingerprint.version

    def remarks(self, *also_lost: str) -> list[str]:
        """Return every sentence that belongs with what is delivered."""
        sentences = [headline(self.recommendation, self.proven)]
        if self.recommendation.simulated:
            sentences.append("SIMULATED: the times come from the simulated cluster, nothing was measured on a machine")
        elif self.recommendation.label:
            sentences.append(f"{self.recommendation.label}: the times were replayed, nothing was launched for this")
        if words := channels_words(self.proven.effective if self.proven else Policy()):
            sentences.append(words)
        return sentences + [f"lost: {sentence}" for sentence in (*self.lost, *also_lost)]


def by_variables(recommendation: Recommendation) -> Delivery:
    """Return what variables deliver.

    Raises:
        SettingError: the policy cannot be compiled for this NCCL.
    """
    proven = recommendation.variables
    policy = proven.effective if proven else Policy()
    version = recommendation.fingerprint.version
    compiled = compile_policy(policy, version=version, collectives=recommendation.collectives)
    if not compiled.variables and not policy.is_default:
        proven = None  # variables express none of it, so none may be claimed
    lost = compiled.lost
    table = recommendation.table
    if not table.effective.is_default and (proven is None or proven.effective != table.policy):
        more = f"the per-size policy, {table.verdict.speedup:.2f}x, which variables cannot express"
        how = f"; --format {TABLE_FORMAT} delivers it, as does slurm-taskprolog with --policy-dir"
        delivered = how if version >= TUNER_API_SINCE else ""
        lost = (more + delivered, *lost)
    return Delivery(recommendation=recommendation, proven=proven, variables=compiled.variables, lost=lost)


def by_table(recommendation: Recommendation) -> Delivery:
    """Return what a table delivers, with the variables that must be in the environment beside it.

    Raises:
        SettingError: a rule or parameter that this NCCL does not have.
    """
    policy, version = recommendation.table.effective, recommendation.fingerprint.version
    rules, lost = [], []
    if policy.rules and version < TUNER_API_SINCE:
        lost.append(f"all of it: NCCL {version} has no tuner API that a plugin of today speaks ({TUNER_API_SINCE})")
    for rule in sorted(policy.rules, key=lambda rule: rule.precedence):
        check_rule(rule, version)
        if rule.algorithm is None or rule.protocol is None:
            lost.append(f"{rule_label(rule)}: a row must name algorithm and protocol")
        else:
            rules.append(rule)
    beside = compile_policy(
        Policy(parameters=policy.parameters), version=version, collectives=recommendation.collectives
    )
    return Delivery(
        recommendation=recommendation,
        proven=recommendation.table,
        rules=tuple(rules),
        variables=beside.variables,
        lost=(*lost, *beside.lost),
    )


def headline(recommendation: Recommendation, policy_verdict: PolicyVerdict | None) -> str:
    """Say in one sentence what is delivered, for whom, and how well it is proven.

    For example `ncclt 1a2b: bert on leonardo 2x4, NCCL 2.22.3: tuned, 1.08x (95 % 1.06-1.10)`.
    """
    valid = recommendation.fingerprint
    what = (
        f"ncclt {recommendation.id}: {recommendation.model} on {recommendation.cluster} "
        f"{valid.nodes}x{valid.gpus_per_node}, NCCL {valid.nccl_version}"
    )
    verdict = (policy_verdict or recommendation.table).verdict
    if policy_verdict is None and verdict.decision is not Decision.KEEP_DEFAULT:
        return f"{what}: {Decision.KEEP_DEFAULT}: no policy that plain variables can express was proven"
    if verdict.decision is not Decision.TUNED:
        return f"{what}: {verdict.decision}: {verdict.reason}"
    low, high = verdict.interval
    return f"{what}: {verdict.decision}, {verdict.speedup:.2f}x (95 % {low:.2f}-{high:.2f})"


def channels_words(policy: Policy) -> str:
    """Say what a policy's channels mean for the compute beside them; empty where it leaves them to NCCL."""
    least = dict(policy.parameters).get(COMPETES_WITH_COMPUTE)
    if least is not None:
        return (
            f"NCCL_{COMPETES_WITH_COMPUTE}={least} may open more channels than NCCL does by itself, which takes SMs "
            "from compute; it was measured beside a matrix product"
        )
    if any(rule.channels is not None for rule in policy.rules):
        return "Numbers of channels are a maximum: no more SMs are taken from compute than by NCCL itself"
    return ""

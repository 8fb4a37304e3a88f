"""Delivery of a recommendation in one form, compiled once for its NCCL, and the command that uses it.

Names, reasons and notes are free text from the store: a renderer writes them through
`ncclt.client.answer.comment_lines`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ncclt.core.attestation import Form
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation
from ncclt.nccl.compile import TUNER_API_SINCE, check_rule, compile_policy, rule_label
from ncclt.nccl.numerics import Numerics, compare_bits
from ncclt.nccl.parameters import TAKES_SMS

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
            sentences.append("SIMULATED: the times come from a model, nothing was measured on a machine")
        elif self.recommendation.label:
            sentences.append(f"{self.recommendation.label}: replayed timings, nothing was launched")
        if words := describe_channels(self.proven.effective if self.proven else Policy()):
            sentences.append(words)
        if self.proven and not self.proven.effective.is_default:
            numerics = compare_numerics(self.recommendation, self.proven.effective, by_variables=not self.rules)
            sentences.append(numerics.sentence)
        return sentences + [f"warning: {sentence}" for sentence in (*self.lost, *also_lost)]


def compare_numerics(recommendation: Recommendation, policy: Policy, *, by_variables: bool) -> Numerics:
    """Compare the bits of a job under one form of a recommendation with those of the NCCL default."""
    version = recommendation.fingerprint.version
    return compare_bits(policy, version=version, by_variables=by_variables)


def deliver_variables(recommendation: Recommendation) -> Delivery:
    """Return the delivery by variables.

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
        use = f"use --format {TABLE_FORMAT}" if version >= TUNER_API_SINCE else f"use NCCL {TUNER_API_SINCE} or later"
        gain = "untried policy" if recommendation.is_untried else f"tuned policy, {table.verdict.speedup:.2f}x,"
        lost = (f"the {gain} needs the plugin: {use}", *lost)
    return Delivery(recommendation=recommendation, proven=proven, variables=compiled.variables, lost=lost)


def deliver_table(recommendation: Recommendation) -> Delivery:
    """Return the delivery by a table, with the variables that must be in the environment besides.

    Raises:
        SettingError: a rule or parameter that this NCCL does not have.
    """
    policy, version = recommendation.table.effective, recommendation.fingerprint.version
    rules, lost = [], []
    if policy.rules and version < TUNER_API_SINCE:
        lost.append(f"the whole policy: tuner tables need NCCL {TUNER_API_SINCE} or later, not {version}")
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
    """Return one sentence with the policy, its job and its verdict.

    For example `ncclt 1a2b: bert on leonardo 2x4, NCCL 2.22.3: tuned, 1.08x (95 % 1.06-1.10)`.
    """
    valid = recommendation.fingerprint
    subject = (
        f"ncclt {recommendation.id}: {recommendation.model} on {recommendation.cluster} "
        f"{valid.nodes}x{valid.gpus_per_node}, NCCL {valid.nccl_version}"
        f"{', deterministic search' if recommendation.deterministic else ''}"
    )
    verdict = (policy_verdict or recommendation.table).verdict
    if policy_verdict is None and verdict.decision is not Decision.KEEP_DEFAULT:
        return f"{subject}: {Decision.KEEP_DEFAULT}: no policy in plain variables was validated"
    if verdict.decision is not Decision.TUNED:
        return f"{subject}: {verdict.decision}: {verdict.reason}"
    if recommendation.has_step_times:
        return f"{subject}: {verdict.decision}, {verdict.reason}"
    low, high = verdict.interval
    return f"{subject}: {verdict.decision}, {verdict.speedup:.2f}x (95 % {low:.2f}-{high:.2f})"


def describe_channels(policy: Policy) -> str:
    """Return the remark on a policy's use of SMs; empty where it leaves channels to NCCL."""
    if widened := [f"NCCL_{name}={value}" for name, value in policy.parameters if name in TAKES_SMS]:
        return (
            f"{' '.join(widened)} may open more channels than the NCCL default and take SMs from compute; it was "
            "measured next to a matrix product"
        )
    if any(rule.channels is not None for rule in policy.rules):
        return "Channel counts are caps; no extra SMs are used"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredForm:
    """Form in which a recommendation is used, with its command.

    Attributes:
        form: in which it is delivered; None = in none.
        proven: policy and verdict of this form; without one those of the table.
        command: to type; empty where there is nothing to use.
        why: why nothing that was proven can be delivered; empty where something is, or nothing was proven.
    """

    form: Form | None
    proven: PolicyVerdict
    command: str = ""
    why: str = ""


def choose_form(recommendation: Recommendation, *, source: str = "", build: bool = False) -> DeliveredForm:
    """Choose the form in which a recommendation is used: variables if they carry the gain, else the table.

    Variables carry it if they were proven themselves, and their speed-up is within the interval of the table or above:
    then the proof shows no difference, and they need no plugin.

    Args:
        source: options that name its store or server, with a space before each.
        build: the tuner plugin has to be built first.
    """
    table, variables, version = recommendation.table, recommendation.variables, recommendation.fingerprint.version
    has_rows = table.verdict.decision is Decision.TUNED and bool(deliver_table(recommendation).rules)
    has_table = has_rows and version >= TUNER_API_SINCE
    if variables is not None and variables.verdict.decision is Decision.TUNED:
        is_slower = has_table and variables.verdict.speedup < table.verdict.interval[0]
        if not is_slower and deliver_variables(recommendation).variables:
            return _with_command(recommendation, Form.VARIABLES, variables, source, build=False)
    if has_table:
        return _with_command(recommendation, Form.TABLE, table, source, build=build)
    if has_rows:
        why = f"tuner tables need NCCL {TUNER_API_SINCE} or later, not {version}"
    elif table.verdict.decision is Decision.TUNED:
        why = "only process-wide variables are left, and they were not validated by themselves"
    elif recommendation.is_untried:
        why = "only the jobs of its roll-out get it"
    else:
        why = ""
    return DeliveredForm(form=None, proven=table, why=why)


def _with_command(
    recommendation: Recommendation, form: Form, proven: PolicyVerdict, source: str, *, build: bool
) -> DeliveredForm:
    """Return a form with its command; nothing uses a stale recommendation or a demonstration."""
    if recommendation.label:
        why = f"run `ncclt tune` on your own cluster; {recommendation.origin} timings are a demonstration"
        return DeliveredForm(form=form, proven=proven, why=why)
    if recommendation.stale:
        return DeliveredForm(form=None, proven=proven, why=f"it is no longer served: {recommendation.stale}")
    if not proven.beats_today:
        return DeliveredForm(form=form, proven=proven, why="keep your settings, or tune with more --blocks")
    place, job = recommendation.fingerprint, job_options(recommendation, source=source)
    own = [name for name, _ in recommendation.today.variables] if recommendation.today else []
    if form is Form.VARIABLES:
        command = f'eval "$(ncclt env {job})"'
        command = f"unset {' '.join(own)}; {command}" if own else command
    else:
        start = f"torchrun --nnodes={place.nodes} --nproc-per-node={place.gpus_per_node} train.py"
        shared = " --shared . --job NAME" if place.nodes > 1 else ""
        override = " --override" if own else ""  # it was measured in place of these variables
        command = f"{'ncclt admin plugin build && ' if build else ''}ncclt run {job}{shared}{override} -- {start}"
    return DeliveredForm(form=form, proven=proven, command=command)


def job_options(recommendation: Recommendation, *, source: str = "") -> str:
    """Return the options of `ncclt env` and `ncclt run` that name the job which a recommendation is for.

    Args:
        source: options that name its store or server, with a space before each.
    """
    place = recommendation.fingerprint
    cluster, model = shlex.quote(recommendation.cluster), shlex.quote(recommendation.model)
    return (
        f"--cluster {cluster} --model {model} --nodes {place.nodes} "
        f"--gpus-per-node {place.gpus_per_node} --nccl-version {place.nccl_version}{source}"
    )

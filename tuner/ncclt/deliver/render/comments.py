"""What a rendered file says to people. Names, reasons and notes are free text of whoever stored them: what is written
goes through `ncclt.client.answer.comment_lines`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation
from ncclt.nccl.parameters import COMPETES_WITH_COMPUTE

_NOT_A_TOKEN = re.compile(r"[^A-Za-z0-9._-]")


def token(text: str) -> str:
    """Return a text as one word that needs no quotes anywhere."""
    return _NOT_A_TOKEN.sub("_", text)


def headline(recommendation: Recommendation, policy_verdict: PolicyVerdict | None) -> str:
    """Say in one sentence what is delivered, for whom, and how well it is proven.

    For example `ncclt 1a2b: bert on leonardo 2x4, NCCL 2.22.3: tuned, 1.08x (95 % 1.06-1.10)`.
    """
    valid = recommendation.fingerprint
    what = (
        f"ncclt {recommendation.id}: {recommendation.model} on {recommendation.cluster} "
        f"{valid.nodes}x{valid.gpus_per_node}, NCCL {valid.nccl_version}"
    )
    if policy_verdict is None:
        return f"{what}: {Decision.KEEP_DEFAULT}: no policy that plain variables can express was proven"
    verdict = policy_verdict.verdict
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


def remarks(recommendation: Recommendation, policy_verdict: PolicyVerdict | None, lost: Iterable[str]) -> list[str]:
    """Return every sentence that belongs beside what is delivered."""
    sentences = [headline(recommendation, policy_verdict)]
    if recommendation.simulated:
        sentences.append("SIMULATED: the times come from the simulated cluster, nothing was measured on a machine")
    elif recommendation.launcher == "replay":
        sentences.append("REPLAYED: the times were recorded elsewhere, nothing was launched for this")
    if words := channels_words(policy_verdict.effective if policy_verdict else Policy()):
        sentences.append(words)
    return sentences + [f"lost: {sentence}" for sentence in lost]

"""The comparison of evidence between a new revision and the active one."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.publication import describe_publication, refuse_replacement
from ncclt.core.recommendation import Coverage, Decision, PolicyVerdict, Verdict
from ncclt.core.revision import RevisionState
from ncclt.testing.samples import sample_recommendation

TREE = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.TREE),))
RING = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING),))


def revision(decision, low=1.0, high=1.0, *, blocks=4, min_effect=0.02, policy=TREE, variables=None, **more):
    verdict = Verdict(
        decision=decision,
        reason="-",
        speedup=(low + high) / 2,
        interval=(low, high),
        blocks=blocks,
        default_us=100.0,
        policy_us=90.0,
        min_effect=min_effect,
    )
    coverage = Coverage(settings=10, measured=("ring/ll",), failed=(), untried=(), channels=(), converged=True)
    return replace(
        sample_recommendation("r"),
        table=PolicyVerdict(policy=policy, verdict=verdict),
        coverage=coverage,
        **more,
    )


def tuned(low, high, **more):
    return revision(Decision.TUNED, low, high, **more)


def kept(**more):
    return revision(Decision.KEEP_DEFAULT, 0.95, 1.01, **more)


PROVEN = tuned(1.08, 1.13)
UNDECIDED = revision(Decision.UNDECIDED)
BY_VARIABLES = replace(PROVEN, variables=PROVEN.table)


@pytest.mark.parametrize(
    ("new", "active", "why"),
    [
        pytest.param(UNDECIDED, PROVEN, "undecided", id="undecided"),
        pytest.param(tuned(1.2, 1.3, simulated=False, launcher="live"), PROVEN, "is on step times", id="steps"),
        pytest.param(kept(), replace(PROVEN, simulated=False, launcher="live"), "is on step times", id="refuted-steps"),
        pytest.param(UNDECIDED, replace(PROVEN, stale="moved"), "undecided", id="undecided-against-stale"),
        pytest.param(kept(blocks=0, policy=Policy()), PROVEN, "without an A/B test", id="unproven"),
        pytest.param(kept(deterministic=True), PROVEN, "deterministic", id="deterministic-against-tuned"),
        pytest.param(kept(deterministic=True), kept(), "deterministic", id="deterministic-against-kept"),
        pytest.param(kept(policy=RING), PROVEN, "another policy", id="refutes-another-policy"),
        pytest.param(kept(min_effect=0.2), PROVEN, "below 20 %", id="disregards-more"),
        pytest.param(kept(blocks=3), PROVEN, "3 blocks", id="shorter-refutation"),
        pytest.param(kept(), PROVEN, "", id="refutation"),
        pytest.param(kept(blocks=0), replace(PROVEN, stale="moved"), "", id="keep-default-against-stale"),
        pytest.param(tuned(1.02, 1.20, blocks=3), PROVEN, "weaker evidence", id="shorter-and-wider"),
        pytest.param(tuned(1.03, 1.05, policy=RING), PROVEN, "below the 1.080x", id="smaller-gain"),
        pytest.param(tuned(1.03, 1.05), PROVEN, "", id="same-policy-again"),
        pytest.param(tuned(1.05, 1.20), PROVEN, "", id="as-many-blocks"),
        pytest.param(tuned(1.10, 1.12, blocks=3), PROVEN, "", id="larger-gain"),
        pytest.param(tuned(1.10, 1.12), BY_VARIABLES, "by variables", id="loses-variables"),
        pytest.param(tuned(1.20, 1.30), BY_VARIABLES, "", id="loses-variables-for-more"),
        pytest.param(PROVEN, kept(), "", id="first-proof"),
        pytest.param(PROVEN, UNDECIDED, "", id="proof-against-undecided"),
        pytest.param(UNDECIDED, UNDECIDED, "", id="undecided-again"),
        pytest.param(UNDECIDED, kept(), "undecided", id="undecided-against-keep-default"),
        pytest.param(kept(blocks=0), kept(), "", id="keep-default-without-a-proof-again"),
        pytest.param(kept(min_effect=0.2), kept(), "below 20 %", id="keep-default-that-disregards-more"),
        pytest.param(kept(), kept(), "", id="keep-default-again"),
    ],
)
def test_only_evidence_as_strong_replaces_the_active_revision(new, active, why):
    found = refuse_replacement(new, active)

    assert (why in found) if why else not found, found


def test_every_place_of_a_revision_names_the_command_that_changes_it(subtests):
    for state in RevisionState:
        with subtests.test(state=state):
            message = describe_publication("r1", state, kept="it is undecided", active=PROVEN)

            if state in (RevisionState.CANDIDATE, RevisionState.RETIRED):
                assert "`ncclt admin recommendations " in message
            else:
                assert not message, "nothing was replaced"

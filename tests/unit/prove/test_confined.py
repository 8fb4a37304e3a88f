"""From NCCL 2.31 variables that force one collective take choices from the others: what then counts as measured."""

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.nccl.compile import compile_policy
from ncclt.prove.confirm import find_uniform_policy
from ncclt.search.assemble import collect_times, expected_us

V2_30, V2_31 = NcclVersion(2, 30, 7), NcclVersion(2, 31, 2)
AR, AG = (
    Message(collective=collective, dtype="float32", size_bytes=1 << 20, group_size=8)
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER)
)
WORKLOAD = Workload(
    name="w",
    messages=tuple(MessageCalls(message=m, calls_per_step=1.0) for m in (AR, AG)),
    provenance=Provenance(source="test"),
)
TREE = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)
FORCED = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.TREE, protocol=Protocol.LL),))


def measured(*rows):
    """Take (setting, all_reduce µs, all_gather µs) as one launch each."""
    trials = []
    for number, (setting, *times) in enumerate(rows):
        measurements = tuple(Measurement(message=m, samples_us=(t,)) for m, t in zip((AR, AG), times, strict=True))
        result = TrialResult(outcome=Outcome.OK, measurements=measurements)
        trials.append(
            Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=sum(times))
        )
    return collect_times(trials)


def test_a_launch_that_confined_a_collective_did_not_measure_its_default(subtests):
    """On 2.31 all_gather lost LL128 under the forced all_reduce: variables give 75 µs, a table 50."""
    cases = [(V2_30, False, 10 + 62.5), (V2_30, True, 10 + 62.5), (V2_31, False, 10 + 50), (V2_31, True, 10 + 75)]
    for version, by_variables, expected in cases:
        with subtests.test(version=version, by_variables=by_variables, expected=expected):
            times = measured((DEFAULT, 20.0, 50.0), (TREE, 10.0, 75.0))

            assert expected_us(FORCED, times, WORKLOAD, version=version, by_variables=by_variables) == expected


def test_variables_that_harm_the_other_collective_are_not_proposed():
    times = measured((DEFAULT, 20.0, 50.0), (TREE, 10.0, 75.0))

    def expressible(version):
        return lambda policy: compile_policy(policy, version=version, collectives=WORKLOAD.collectives).complete

    assert find_uniform_policy(times, WORKLOAD, version=V2_31, expressible=expressible(V2_31)) is None
    # Before, nothing else had changed for all_gather: its 75 µs were noise about the default's.
    assert find_uniform_policy(times, WORKLOAD, version=V2_30, expressible=expressible(V2_30)) == FORCED


def test_a_choice_that_was_measured_in_its_confined_form_alone_still_has_a_time():
    """Channels bind all collectives, and no launch had them without the forced pair."""
    few = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4)
    policy = Policy(
        rules=(
            Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4),
            Rule(collective=Collective.ALL_GATHER, channels=4),
        )
    )
    times = measured((DEFAULT, 20.0, 50.0), (few, 10.0, 40.0))

    for by_variables in (False, True):
        assert expected_us(policy, times, WORKLOAD, version=V2_31, by_variables=by_variables) == 50.0

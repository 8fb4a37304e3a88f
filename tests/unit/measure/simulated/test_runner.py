"""The simulated cluster: determinism, refusals, silent corruption, and gaps to the default of a believable size."""

import pytest

from ncclt.core.algorithms import Algorithm, Protocol, choices
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.measure.simulated import Faults, SimulatedRunner
from ncclt.nccl.cost_model.topology import build_topology

AR = Collective.ALL_REDUCE
LEONARDO = Cluster(
    name="leo",
    nodes=2,
    gpus_per_node=4,
    gpu="A100",
    compute_capability=80,
    link_class="nvlink",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=4,
    nic_gbps=12.5,
    gpudirect=True,
    nccl_version="2.22.3",
)
PAIR = Cluster(
    name="pair",
    gpus_per_node=2,
    gpu="L40S",
    compute_capability=89,
    link_class="shm",
    link_gbps=32.0,
    cpu="amd",
    nccl_version="2.29.2",
)
RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
MESSAGES = tuple(Message(collective=AR, dtype="float32", size_bytes=1 << e) for e in range(10, 28, 3))


def message(size: int = 1 << 20, collective: Collective = AR, **changes) -> Message:
    return Message(collective=collective, dtype="float32", size_bytes=size, **changes)


def test_a_launch_depends_on_seed_setting_repeat_and_message_alone():
    runner = SimulatedRunner(LEONARDO, seed=3)
    first = runner.measure(RING_LL, MESSAGES, repeat=1)
    runner.measure(DEFAULT, MESSAGES, repeat=0)
    again = SimulatedRunner(LEONARDO, seed=3).measure(RING_LL, MESSAGES[::-1], repeat=1)
    assert {m.message: m.samples_us for m in first.measurements} == {
        m.message: m.samples_us for m in again.measurements
    }


@pytest.mark.parametrize("other", [{"seed": 4}, {"repeat": 2}, {"setting": DEFAULT}])
def test_anything_else_gives_other_samples(other):
    def samples(*, seed=3, repeat=1, setting=RING_LL):
        return SimulatedRunner(LEONARDO, seed=seed).measure(setting, MESSAGES, repeat=repeat).measurements[0].samples_us

    assert samples() != samples(**other)


def test_without_noise_the_samples_are_the_truth():
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    result = runner.measure(RING_LL, MESSAGES, repeat=0)
    for measurement in result.measurements:
        assert set(measurement.samples_us) == {runner.expected_us(RING_LL, measurement.message)}


def test_the_median_of_many_launches_is_near_the_truth():
    runner = SimulatedRunner(LEONARDO, seed=1)
    times = sorted(runner.measure(DEFAULT, MESSAGES[:1], repeat=r).measurements[0].time_us for r in range(101))
    assert times[50] == pytest.approx(runner.expected_us(DEFAULT, MESSAGES[0]), rel=0.02)


def test_the_first_launch_of_a_setting_starts_cold():
    runner = SimulatedRunner(PAIR, seed=1, sigma=0.001)
    many = tuple(message(size) for size in range(4096, 409600, 4096))
    cold, warm = (runner.measure(DEFAULT, many, repeat=repeat).measurements for repeat in (0, 1))

    def first_over_rest(measurements):
        return sum(m.samples_us[0] / m.time_us for m in measurements) / len(measurements)

    assert first_over_rest(cold) > 1.1 > first_over_rest(warm)


def test_what_nccl_refuses_is_invalid(subtests):
    cases = [
        (Setting(parameters=(("BUFFSIZE", 1000),)), "BUFFSIZE"),
        (Setting(parameters=(("BUFFSIZE", 32768),)), "BUFFSIZE"),
        (Setting(parameters=(("BUFFSIZE", 1 << 27),)), "BUFFSIZE"),
        (Setting(channels=33), "at most 32 channels"),
        (Setting(algorithm=Algorithm.NVLS_TREE, protocol=Protocol.SIMPLE), "no algorithm/protocol available"),
    ]
    for setting, words in cases:
        with subtests.test(setting=setting):
            result = SimulatedRunner(LEONARDO, seed=1).measure(setting, MESSAGES, repeat=0)
            assert result.outcome is Outcome.INVALID
            assert words in result.detail


def test_ll128_corrupts_where_nccl_does_not_enable_it():
    forced = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128)
    over_pcie = SimulatedRunner(PAIR, seed=1).measure(forced, MESSAGES, repeat=0)
    over_nvlink = SimulatedRunner(LEONARDO, seed=1).measure(forced, MESSAGES, repeat=0)
    assert over_pcie.outcome is Outcome.WRONG_RESULT
    assert all(m.wrong for m in over_pcie.measurements)
    assert over_nvlink.outcome is Outcome.OK


def test_a_forced_pair_reaches_only_collectives_that_have_it():
    """A tree does not exist for broadcast; send_recv and all_to_all never pass the tuner at all."""
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE, channels=1)
    for collective in (Collective.ALL_TO_ALL, Collective.SEND_RECV):
        assert runner.expected_us(tree, message(collective=collective)) == runner.expected_us(
            DEFAULT, message(collective=collective)
        )
    one_channel = Setting(channels=1)
    broadcast = message(collective=Collective.BROADCAST)
    assert runner.expected_us(tree, broadcast) == runner.expected_us(one_channel, broadcast)


def test_parameters_matter_where_they_are_understood_and_nowhere_else():
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    large = message(1 << 30, collective=Collective.REDUCE_SCATTER)
    base = runner.expected_us(DEFAULT, large)
    assert runner.expected_us(Setting(parameters=(("BUFFSIZE", 65536),)), large) > base
    assert runner.expected_us(Setting(parameters=(("NTHREADS", 64),)), large) > base
    assert runner.expected_us(Setting(parameters=(("SOME_NEW_ONE", 7),)), large) == base


def test_channels_beyond_those_that_nccl_opens_change_nothing():
    """They are a maximum: neither a table nor NCCL_MAX_CTAS opens more."""
    most = build_topology(LEONARDO).channels
    runner = SimulatedRunner(LEONARDO, seed=1)

    def time_us(channels):
        ring = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=channels)
        return runner.expected_us(ring, message(64 << 20))

    assert time_us(most) == time_us(2 * most)
    assert time_us(most) != time_us(most // 2)


def test_a_group_within_a_node_does_not_use_the_network():
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    inside = runner.expected_us(DEFAULT, message(1024, group_size=4))
    across = runner.expected_us(DEFAULT, message(1024, group_size=4, spans_nodes=True))
    assert inside < across


def test_a_group_that_does_not_fit_is_the_callers_mistake():
    with pytest.raises(UsageError, match="does not fit"):
        SimulatedRunner(PAIR, seed=1).measure(DEFAULT, [message(group_size=3)], repeat=0)


def test_faults_become_outcomes_with_words(subtests):
    cases = [
        (Faults(crash=1.0), Outcome.CRASHED),
        (Faults(hang=1.0), Outcome.TIMEOUT),
        (Faults(wrong=1.0), Outcome.WRONG_RESULT),
        (Faults(hang_if=lambda s: s.channels == 16), Outcome.TIMEOUT),
    ]
    for faults, outcome in cases:
        with subtests.test(faults=faults):
            result = SimulatedRunner(LEONARDO, seed=1, faults=faults).measure(Setting(channels=16), MESSAGES, repeat=0)
            assert result.outcome is outcome
            assert result.detail


def _best(runner: SimulatedRunner, wanted: Message) -> float:
    settings = [
        Setting(algorithm=a, protocol=p, channels=c)
        for a, p in choices([wanted.collective], runner.cluster)
        for c in (None, 1, 2, 4, 8, 16, 32)
    ]
    return min(runner.expected_us(s, wanted) for s in (DEFAULT, *settings))


def test_the_default_is_far_off_somewhere_in_the_middle_and_close_for_large_messages():
    """Public two-node curves jump between 64 KiB and 1 MiB where NCCL changes protocol; at 64 MiB the wire decides."""
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)
    gain = {e: runner.expected_us(DEFAULT, message(1 << e)) / _best(runner, message(1 << e)) for e in range(7, 28)}
    assert max(gain[e] for e in range(14, 23)) > 1.05
    assert max(gain.values()) < 2.0
    assert all(gain[e] < 1.05 for e in (26, 27))
    assert all(g >= 1.0 for g in gain.values())


def test_different_sizes_have_different_winners():
    runner = SimulatedRunner(LEONARDO, seed=1, sigma=0)

    def winner(wanted: Message) -> tuple[Algorithm, Protocol]:
        return min(
            choices([AR], LEONARDO),
            key=lambda pair: runner.expected_us(Setting(algorithm=pair[0], protocol=pair[1]), wanted),
        )

    winners = {winner(message(1 << e)) for e in range(8, 31)}
    assert len(winners) >= 3

"""What earlier studies are to the next one: which count, how much, and what becomes of one that misleads."""

from dataclasses import replace

import numpy as np
import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.setting import DEFAULT
from ncclt.core.study import BegunFrom, Phase, Study, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.search import earlier
from ncclt.search.earlier import (
    EarlierStudy,
    begin,
    foreseen,
    launches_of,
    surface,
    trust_in,
    weighed,
)
from ncclt.search.gaussian_process import Table
from ncclt.search.kernels import likeness
from ncclt.search.observations import Launch
from ncclt.search.sampler import PolicySampler
from ncclt.search.space import cluster_space
from ncclt.search.surfaces import Surface, beginning
from ncclt.store import open_store
from ncclt.store.location import locate
from ncclt.store.retention import prune_store

IDS = ("000000000000", "111111111111", "222222222222", "333333333333", "444444444444", "555555555555")
NETWORK = {"fabric": "infiniband", "nics_per_node": 4, "nic_gbps": 25.0}
DGX = Cluster(
    name="dgx", nodes=4, gpus_per_node=8, gpu="A100", compute_capability=80, link_class="nvswitch", link_gbps=300,
    nccl_version="2.28.3", **NETWORK,
)  # fmt: skip


@pytest.fixture
def space(cluster, workload):
    return cluster_space(workload.collectives, cluster, parameters={})


def launches(space, workload, time_of, *, every=1):
    """Launches of the default and of every n-th setting."""
    forced = [s for s in space.distinct if not s.is_default][::every]
    return tuple(
        Launch(setting=s, times_us=tuple(time_of(s, c.message, 0) for c in workload.messages))
        for s in (DEFAULT, *forced)
    )


def source(cluster, workload, made, *, trust=0.9):
    begun = BegunFrom(study=IDS[0], name="w", nodes=cluster.nodes, launches=len(made), weight=trust)
    return EarlierStudy(begun=begun, cluster=cluster, workload=workload, launches=made, trust=trust)


def test_a_launch_that_lacks_a_message_is_no_launch_and_one_that_failed_is_a_failure(workload):
    def trial(outcome, messages):
        measured = tuple(Measurement(message=c.message, samples_us=(5.0,)) for c in messages)
        return Trial(
            number=0, phase=Phase.SEARCH, setting=DEFAULT, repeat=0,
            result=TrialResult(outcome=outcome, measurements=measured), score_us=None,
        )  # fmt: skip

    whole, part = workload.messages, workload.messages[:1]
    assert [launch.times_us for launch in launches_of([trial(Outcome.OK, whole)], workload)] == [(5.0,) * len(whole)]
    assert launches_of([trial(Outcome.OK, part)], workload) == ()
    failed, wrong = launches_of([trial(Outcome.CRASHED, part), trial(Outcome.WRONG_RESULT, whole)], workload)
    assert (failed.times_us, failed.wrong, wrong.times_us, wrong.wrong) == (None, False, None, True)


def upside_down(time_of):
    """The same landscape with gains and losses exchanged."""
    return lambda setting, message, number: time_of(DEFAULT, message, number) ** 2 / time_of(setting, message, number)


def follow(sampler, workload, time_of, count):
    made = [launched(DEFAULT, workload, time_of)]
    weights = []
    while len(made) < count and (decision := sampler.decide(made)) is not None:
        weights.append(sampler.source_weights)
        made.append(launched(decision.setting, workload, time_of))
    return made, weights


def launched(setting, workload, time_of):
    return Launch(setting=setting, times_us=tuple(time_of(setting, c.message, 0) for c in workload.messages))


def gain(made, workload):
    """The share that is saved by the best launch of each message."""
    calls = np.array([c.calls_per_step for c in workload.messages])
    table = np.array([launch.times_us for launch in made])
    return 1 - (table.min(axis=0) @ calls) / (table[0] @ calls)


def test_what_was_measured_on_the_same_machine_finds_the_best_settings_at_once(cluster, workload, space, landscape):
    found = source(cluster, workload, launches(space, workload, landscape, every=3))
    alone, _ = follow(PolicySampler(space, workload, cluster), workload, landscape, 3)
    begun, weights = follow(PolicySampler(space, workload, cluster, sources=(found,)), workload, landscape, 3)

    assert gain(begun, workload) > gain(alone, workload)
    assert weights[-1][0] > 0.5


def test_a_source_that_mispredicts_the_first_three_launches_has_no_weight_left(cluster, workload, space, landscape):
    wrong = source(cluster, workload, launches(space, workload, upside_down(landscape)))
    sampler = PolicySampler(space, workload, cluster, sources=(wrong,))
    made, weights = follow(sampler, workload, landscape, 20)
    alone, _ = follow(PolicySampler(space, workload, cluster), workload, landscape, 20)

    assert weights[0][0] > 0.5, "before anything is measured nothing speaks against it"
    assert weights[3][0] < 0.05
    assert gain(made, workload) == pytest.approx(gain(alone, workload), abs=0.02)


def test_once_it_has_lost_its_weight_the_choice_is_that_without_it(cluster, workload, space, landscape):
    wrong = source(cluster, workload, launches(space, workload, upside_down(landscape)))
    made, _ = follow(PolicySampler(space, workload, cluster), workload, landscape, 9)
    with_it = PolicySampler(space, workload, cluster, sources=(wrong,))

    assert with_it.decide(made).setting == PolicySampler(space, workload, cluster).decide(made).setting
    assert with_it.source_weights == (0.0,)


def test_a_message_far_from_all_that_was_measured_is_told_nothing(cluster, workload, space, landscape):
    small = replace(workload, messages=tuple(c for c in workload.messages if c.message.size_bytes < 1 << 20))
    settings = [s for s in space.distinct if not s.is_default]
    messages = [c.message for c in workload.messages]
    found = surface(source(cluster, small, launches(space, small, landscape)), settings, messages, cluster)
    near, far = messages.index(small.messages[0].message), 1 - messages.index(small.messages[0].message)

    assert found.coverage[:, near].min() > 0.5
    assert found.coverage[:, far].max() < 0.1
    assert np.abs(found.departure[:, far]).max() < 0.1 * np.abs(found.departure[:, near]).max()


def test_what_a_source_never_launched_is_taken_over_less(cluster, workload, space, landscape):
    made = launches(space, workload, landscape, every=9)
    settings = [s for s in space.distinct if not s.is_default]
    messages = [c.message for c in workload.messages]
    found = surface(source(cluster, workload, made), settings, messages, cluster)
    there = np.isin(np.arange(len(settings)), [settings.index(launch.setting) for launch in made[1:]])

    assert found.coverage[there].min() > 0.8
    assert found.coverage[~there].min() < 0.5


def test_where_a_trusted_source_has_measured_a_fifth_of_the_deviation_is_left(cluster, workload, space):
    settings, messages = [s for s in space.distinct if not s.is_default][:3], [c.message for c in workload.messages]
    nothing, coverage = np.zeros((3, len(messages))), np.array([[1.0, 1.0], [0.5, 1.0], [0.0, 0.0]])
    before = likeness(settings, messages, cluster)

    found = beginning(nothing[None], before, [Surface(departure=nothing, coverage=coverage, trust=0.9)], None)

    left = np.sqrt(np.diag(found.alike.smooth) / np.diag(before.smooth))
    assert left == pytest.approx([1 - 0.8 * 0.9, 1 - 0.8 * 0.9 * 0.5, 1])


def test_launches_that_tell_nothing_leave_the_trust_in_a_source_as_it_is(cluster, workload, space):
    settings, messages = [s for s in space.distinct if not s.is_default][:3], [c.message for c in workload.messages]
    shape = (3, len(messages))
    there = Surface(departure=np.full(shape, 0.1), coverage=np.ones(shape), trust=0.6)
    expected = np.zeros((3, *shape))
    noisy = Table(rows=np.array([0, 2]), values=np.zeros((2, shape[1])), noise=np.full(2, 1e6), expected=expected)

    found = beginning(expected, likeness(settings, messages, cluster), [there], noisy)

    assert found.weights == pytest.approx((0.6,), abs=1e-3)


@pytest.mark.parametrize(
    ("there", "here", "less"),
    [
        ({"nodes": 2}, {}, True),
        ({"nccl_version": "2.27.7"}, {}, True),
        ({"nccl_version": "2.28.9"}, {}, False),
        ({"driver": "570.1"}, {"driver": "580.65"}, True),
        ({"driver": "570.1"}, {"driver": "570.1"}, False),
        ({"driver": "570.1"}, {}, False),
        ({}, {"driver": "570.1"}, False),
        ({"name": "another name"}, {}, False),
    ],
)
def test_trust_is_less_the_further_a_cluster_is(there, here, less):
    same = trust_in(DGX, DGX)
    other = trust_in(replace(DGX, **there), replace(DGX, **here))

    assert 0.5 < other <= same < 1
    assert (other < same) is less


@pytest.mark.parametrize(
    "there",
    [{"gpu": "H100", "compute_capability": 90}, {"link_class": "pcie"}, {"fabric": "roce"}, {"nccl_version": "3.0.1"}],
)
def test_other_hardware_or_another_nccl_altogether_says_nothing(there):
    assert trust_in(replace(DGX, **there), DGX) == 0


def test_a_network_that_one_of_the_two_does_not_use_does_not_count():
    alone = replace(DGX, nodes=1, fabric="none", nics_per_node=0, nic_gbps=0)

    assert 0 < trust_in(alone, DGX) < 0.5


@pytest.mark.parametrize("there", [{"nodes": 2}, {"nic_gbps": 12.5}, {"nics_per_node": 8}, {"gpus_per_node": 4}])
def test_a_record_of_somebody_elses_machine_counts_only_if_the_machine_is_the_same(there):
    assert 0 < trust_in(DGX, DGX, recorded=True) < trust_in(DGX, DGX)
    assert trust_in(replace(DGX, **there), DGX, recorded=True) == 0 < trust_in(replace(DGX, **there), DGX)


# --- from the store ---


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'ncclt.db'}") as opened:
        yield opened


def study(cluster, workload, number, *, launcher="local", simulated=False):
    return Study(
        id=IDS[number], name=f"study {number}", cluster=cluster, workload=workload, launcher=launcher,
        simulated=simulated, process_wide=(), seed=0, state=StudyState.DONE,
    )  # fmt: skip


def keep(store, kept, made):
    store.open_study(kept)
    for number, launch in enumerate(made):
        measured = tuple(
            Measurement(message=c.message, samples_us=(time_us,))
            for c, time_us in zip(kept.workload.messages, launch.times_us, strict=True)
        )
        store.add_trial(
            kept.id,
            Trial(
                number=number, phase=Phase.SEARCH, setting=launch.setting, repeat=0, score_us=1.0,
                result=TrialResult(outcome=Outcome.OK, measurements=measured),
            ),
        )  # fmt: skip
    return kept


def test_a_study_begins_from_what_the_store_has_and_keeps_it(store, cluster, workload, space, landscape):
    made = launches(space, workload, landscape, every=9)
    before = keep(store, study(cluster, workload, 0), made)
    then = (store.study(before.id), store.trials(before.id))
    new = store.open_study(study(cluster, workload, 1))

    begun, sources = begin(store, new, launched=False)

    assert [b.words for b in begun.begun_from] == [f"w on 1 node ({len(made)} launches), weight 0.9"]
    assert sources[0].launches == made
    assert store.study(new.id).begun_from == begun.begun_from
    assert (store.study(before.id), store.trials(before.id)) == then, "it is only read"


def test_it_goes_on_from_the_same_launches_whatever_is_measured_meanwhile(store, cluster, workload, space, landscape):
    made = launches(space, workload, landscape, every=9)
    earlier = keep(store, study(cluster, workload, 0), made[:5])
    begun, first = begin(store, store.open_study(study(cluster, workload, 1)), launched=False)
    extra = Trial(
        number=5, phase=Phase.SEARCH, setting=DEFAULT, repeat=1, score_us=1.0, result=store.trials(IDS[0])[0].result
    )
    store.add_trial(earlier.id, extra)
    keep(store, study(cluster, workload, 2), made)

    again, second = begin(store, store.study(begun.id), launched=False)

    assert (again.begun_from, second) == (begun.begun_from, first)


def test_it_goes_on_without_an_earlier_study_that_was_removed(store, cluster, workload, space, landscape):
    made = launches(space, workload, landscape, every=9)
    for number in (0, 2):
        keep(store, study(cluster, workload, number), made)
    begun, both = begin(store, store.open_study(study(cluster, workload, 1)), launched=False)
    assert len(both) == 2
    for number in (1, 2):
        store.set_state(IDS[number], StudyState.RUNNING, "")
    prune_store(locate(store.url), "2999-01-01", dry_run=False, forget=lambda _url, _names: None)

    again, left = begin(store, store.study(begun.id), launched=False)

    assert [source.begun.study for source in left] == [one.study for one in again.begun_from if one.study != IDS[0]]
    assert len(left) == 1


def test_a_study_that_began_from_the_cost_model_goes_on_so(store, cluster, workload, space, landscape):
    made = launches(space, workload, landscape, every=9)
    old = keep(store, study(cluster, workload, 1), made[:2])
    keep(store, study(cluster, workload, 0), made)

    assert begin(store, store.study(old.id), launched=False) == (store.study(old.id), ())


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ({"launcher": "simulate", "simulated": True}, {}),
        ({}, {"launcher": "simulate", "simulated": True}),
        ({"launcher": "simulate", "simulated": True}, {"launcher": "replay"}),
    ],
)
def test_simulated_and_measured_times_do_not_mix(store, cluster, workload, space, landscape, there, here):
    keep(store, study(cluster, workload, 0, **there), launches(space, workload, landscape, every=9))
    new = store.open_study(study(cluster, workload, 1, **here))

    assert begin(store, new, launched=False)[1] == ()


def test_a_recorded_source_is_labelled_and_must_be_of_the_same_machine(store, cluster, workload, space, landscape):
    made = launches(space, workload, landscape, every=9)
    keep(store, study(replace(cluster, description="their pair"), workload, 0, launcher="replay"), made)
    keep(store, study(replace(cluster, gpus_per_node=8), workload, 1, launcher="replay"), made)
    begun, _ = begin(store, store.open_study(study(cluster, workload, 2)), launched=False)

    (only,) = begun.begun_from
    assert (only.study, only.label) == (IDS[0], "recorded: their pair")
    assert only.words == f"w on 1 node ({len(made)} launches; recorded), weight 0.6"


def test_a_shipped_landscape_of_the_same_machine_counts_for_what_is_launched(store, workload):
    machine = store.cluster("mi355x-2x8")
    placed = replace(workload, messages=tuple(
        replace(c, message=replace(c.message, group_size=16, spans_nodes=True)) for c in workload.messages
    ))  # fmt: skip
    replayed = store.open_study(study(machine, placed, 0, launcher="replay"))
    mine = store.open_study(study(replace(machine, name="mine"), placed, 1, launcher="slurm"))

    assert begin(store, replayed, launched=False)[1] == (), "it would be told the times that it is about to replay"
    begun, (found,) = begin(store, mine, launched=True)
    assert begun.begun_from[0].words == "mi355x-2x8 on 2 nodes (54 settings; recorded), weight 0.6"
    assert len(found.launches) == 55
    assert begin(store, begun, launched=True) == (begun, (found,)), "it is read again as it was"


def test_the_nearest_comes_first_and_of_equally_near_ones_the_larger(cluster, workload, space, landscape):
    few, many = (launches(space, workload, landscape, every=every) for every in (9, 3))
    asked = study(cluster, workload, 4)

    def first(*candidates):
        found = earlier._nearest([source(cluster, workload, made, trust=trust) for made, trust in candidates], asked)
        return found[0].begun.launches

    assert first((many, 0.9), (few, 0.902)) == len(few)
    assert first((few, 0.9001), (many, 0.9)) == len(many)


def test_few_launches_and_more_sources_than_help_are_left_out(store, cluster, workload, space, landscape):
    """Of equally near studies the three largest count, and three launches are none."""
    made = launches(space, workload, landscape, every=9)
    for number, count in enumerate((3, 4, 5, 6)):
        keep(store, study(cluster, workload, number), made[:count])
    new = study(cluster, workload, 4)
    assert [begun.study for begun in foreseen(store, new, launched=False)] == [IDS[3], IDS[2], IDS[1]]

    keep(store, new, made[:7])
    newest = study(cluster, workload, 5)
    assert [begun.study for begun in foreseen(store, newest, launched=False)] == [IDS[4], IDS[3], IDS[2]]


def test_weights_follow_the_sources_that_still_exist(cluster, workload):
    gone = BegunFrom(name="landscape that is not shipped any more", nodes=2, launches=9, weight=0.4)
    there = source(cluster, workload, ())
    begun = replace(study(cluster, workload, 1), begun_from=(gone, there.begun))

    assert [b.weight for b in weighed(begun, (there,), (0.25,))] == [0.4, 0.25]
    assert weighed(begun, (there,), ()) == begun.begun_from

"""One candidate: canonical form, digest, and what of it reaches a collective."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import DEFAULT, Setting, check_setting, max_channels
from ncclt.errors import SettingError

V = NcclVersion.parse("2.28.9")
AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER
any_setting = st.builds(
    Setting,
    algorithm=st.none() | st.sampled_from(Algorithm),
    protocol=st.none() | st.sampled_from(Protocol),
    channels=st.none() | st.integers(1, 64),
    parameters=st.dictionaries(st.sampled_from(["BUFFSIZE", "NTHREADS"]), st.integers(0, 2**30)).map(
        lambda found: tuple(found.items())
    ),
    spares_reductions=st.booleans(),
)


@given(any_setting, any_setting)
def test_equal_settings_and_only_those_have_equal_digests(one, other):
    assert (one.digest() == other.digest()) is (one == other)


def test_the_order_of_parameters_does_not_count():
    one = Setting(parameters=(("NTHREADS", 256), ("BUFFSIZE", 8388608)))
    other = Setting(parameters=(("BUFFSIZE", 8388608), ("NTHREADS", 256)))

    assert one == other
    assert one.digest() == other.digest()


def test_a_digest_stays_the_same_in_every_release():
    """Stores recognise the repeats of a setting by it."""
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4, parameters=(("NTHREADS", 256),))
    assert (DEFAULT.digest(), tree.digest()) == ("44136fa355b3", "8c1c5714e2c9")


@pytest.mark.parametrize("channels", [1, 64])
def test_the_fewest_and_the_most_channels_are_taken(channels):
    assert Setting(channels=channels).channels == channels


def test_the_default_is_empty_and_alone():
    assert DEFAULT.is_default
    assert DEFAULT.to_document() == {}
    assert DEFAULT.label == "default"
    assert not Setting(channels=1).is_default


@pytest.mark.parametrize(
    ("setting", "label"),
    [
        (Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=8), "ring/simple c=8"),
        (Setting(protocol=Protocol.LL), "auto/ll"),
        (Setting(channels=4, parameters=(("BUFFSIZE", 8388608),)), "c=4 BUFFSIZE=8388608"),
    ],
)
def test_labels_for_people(setting, label):
    assert setting.label == label


@pytest.mark.parametrize("channels", [0, -1, 65])
def test_an_impossible_number_of_channels_is_refused(channels):
    with pytest.raises(SettingError, match="1 to 64"):
        Setting(channels=channels)


def test_an_illegal_pair_leaves_the_choice_to_nccl_and_keeps_the_rest():
    setting = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4, parameters=(("NTHREADS", 256),))

    assert setting.applied_to(AR, version=V) == setting
    assert setting.applied_to(AG, version=V) == Setting(channels=4, parameters=(("NTHREADS", 256),))
    assert setting.applied_to(Collective.SEND_RECV, version=V) == Setting(parameters=(("NTHREADS", 256),))


@pytest.mark.parametrize("version", [V, NcclVersion(2, 31, 2)])
def test_a_setting_can_spare_reductions(version):
    plain = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=4, parameters=(("NSOCKS_PERTHREAD", 2),))
    spared = replace(plain, spares_reductions=True)

    assert spared.applied_to(AG, version=version) == plain
    for reduction in (AR, Collective.REDUCE_SCATTER, Collective.REDUCE):
        assert spared.applied_to(reduction, version=version) == Setting(parameters=plain.parameters)
    assert spared.label == f"{plain.label} (reductions left to NCCL)"
    with pytest.raises(SettingError):
        check_setting(replace(spared, parameters=()), [AR], version=version)


def test_a_setting_that_is_legal_for_no_collective_is_refused():
    tree = Setting(algorithm=Algorithm.TREE)

    check_setting(tree, [AG, AR], version=V)
    for collectives in ([AG], [Collective.SEND_RECV], []):
        with pytest.raises(SettingError, match="has no tree/auto"):
            check_setting(tree, collectives, version=V)


def test_channels_are_bounded_by_the_version():
    assert (max_channels(NcclVersion(2, 24, 3)), max_channels(NcclVersion(2, 25))) == (32, 64)
    check_setting(Setting(channels=64), [AR], version=V)
    with pytest.raises(SettingError, match="at most 32 channels"):
        check_setting(Setting(channels=33), [AR], version=NcclVersion(2, 24, 3))


def test_a_document_that_is_no_setting_is_refused(subtests):
    for document in [
        {"algorithm": "spanning"},
        {"parameters": {"BUFFSIZE": "big"}},
        {"parameters": 3},
        {"channels": "8"},
    ]:
        with subtests.test(document=document), pytest.raises(SettingError):
            Setting.from_document(document)


@pytest.mark.parametrize(("version", "confined"), [("2.30.7", False), ("2.31.2", True), ("2.32.3", True)])
def test_from_2_31_forcing_one_collective_confines_the_others(version, confined):
    """Their times are then not the default's: NCCL cannot take LL128, NVLS or PAT for them."""
    tree, parsed = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4), NcclVersion.parse(version)

    assert tree.applied_to(AR, version=parsed) == tree
    assert tree.applied_to(AG, version=parsed) == Setting(channels=4, confined=confined)
    assert tree.applied_to(Collective.ALL_TO_ALL, version=parsed) == DEFAULT
    assert Setting(channels=4).applied_to(AG, version=parsed) == Setting(channels=4)
    assert DEFAULT.applied_to(AG, version=parsed) == DEFAULT
    # A tuner table carries LL128, never a variable, and a table touches nothing else.
    ll128 = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL128)
    assert ll128.applied_to(AG, version=parsed) == DEFAULT


def test_a_confined_choice_is_not_the_default_and_says_what_is_left():
    confined = Setting(confined=True, channels=2)

    assert not Setting(confined=True).is_default
    assert confined.label == "auto among ring, tree, ll, simple c=2"

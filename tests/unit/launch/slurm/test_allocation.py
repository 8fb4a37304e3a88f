"""The allocation is read from what Slurm puts into the environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import UsageError
from ncclt.launch.slurm import allocation
from ncclt.launch.slurm.allocation import Allocation, addresses_by_scontrol, expand_hostlist, read_allocation


def test_hostlists_are_expanded_as_slurm_does(subtests):
    cases = [
        ("n1", "n1"),
        ("a[1-3,07],b2", "a1 a2 a3 a07 b2"),
        ("gpu[008-011]", "gpu008 gpu009 gpu010 gpu011"),
        ("rack[0-1]node[1-2]-ib", "rack0node1-ib rack0node2-ib rack1node1-ib rack1node2-ib"),
        ("login2,c[9-10],login1", "login2 c9 c10 login1"),
        ("c[7-7]", "c7"),
        ("ip-10-0-33-[4,6]", "ip-10-0-33-4 ip-10-0-33-6"),
    ]
    for text, hosts in cases:
        with subtests.test(text=text):
            assert expand_hostlist(text) == tuple(hosts.split())


def test_other_texts_are_refused(subtests):
    cases = ["", ",", "a,", "a[", "a[]", "a[1-", "a[3-1]", "a[x]", "a]1[", "a[1]]", "a b", "a[0-99999999999]"]
    for text in cases:
        with subtests.test(text=text), pytest.raises(UsageError, match="not a list of Slurm nodes"):
            expand_hostlist(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("a[1-3]b[1-4]", 12), ("a[1-3]b[1-4],c", 0), ("a[1-12]", 12), ("a[1-13]", 0), ("a[1-7]b[1-2]", 0)],
)
def test_a_mistyped_range_does_not_exhaust_memory(monkeypatch, text, count):
    monkeypatch.setattr(allocation, "_MAX_HOSTS", 12)
    if count:
        assert len(expand_hostlist(text)) == count
    else:
        with pytest.raises(UsageError, match="not a list of Slurm nodes"):
            expand_hostlist(text)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20, unique=True), st.integers(1, 5))
def test_numbers_in_brackets_keep_order_and_width(numbers, width):
    words = [str(number).zfill(width) for number in numbers]
    assert expand_hostlist(f"n[{','.join(words)}]") == tuple(f"n{word}" for word in words)


@given(st.text(max_size=40))
def test_any_text_is_expanded_or_refused(text):
    try:
        hosts = expand_hostlist(text)
    except UsageError:
        return
    assert hosts
    assert not any(set(host) & set("[], ") for host in hosts)


def test_no_job_means_no_allocation():
    assert read_allocation({"SLURM_CONF": "/etc/slurm/slurm.conf"}) is None


def test_a_plain_job_has_one_group():
    allocation = read_allocation(
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": "12"},
        addresses_of=lambda _environment, hosts: {"n1": "10.0.0.1", "n2": "n2"},
    )
    assert allocation == Allocation(
        job_ids=("7",), groups=(("n1", "n2"),), cpus_per_task=12, addresses=(("n1", "10.0.0.1"),)
    )
    assert (allocation.address("n1"), allocation.address("n2")) == ("10.0.0.1", "n2")


def test_a_heterogeneous_job_has_a_group_for_each_component():
    allocation = read_allocation(
        {
            "SLURM_JOB_ID": "5",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_HET_SIZE": "2",
            "SLURM_JOB_ID_HET_GROUP_0": "5",
            "SLURM_JOB_ID_HET_GROUP_1": "6",
            "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
            "SLURM_JOB_NODELIST_HET_GROUP_1": "g[1-2]",
        }
    )
    assert allocation.hosts == ("n1", "g1", "g2")
    assert allocation.job_ids == ("5", "6")


def test_too_few_nodes_are_counted():
    allocation = Allocation(job_ids=("7",), groups=(("n1", "n2"),))
    with pytest.raises(UsageError, match="3 nodes requested, but Slurm allocation 7 has 2") as raised:
        allocation.choose(nodes=3, hosts=())
    assert "--nodes 2" in raised.value.hint


def test_nodes_of_others_are_refused():
    allocation = Allocation(job_ids=("7",), groups=(("n1", "n2"),))
    with pytest.raises(UsageError, match="n9 is not in Slurm allocation 7"):
        allocation.choose(nodes=1, hosts=("n9",))


def test_named_nodes_come_in_the_order_of_the_ranks():
    allocation = Allocation(job_ids=("7",), groups=(("n1", "n2", "n3"),))
    assert allocation.choose(nodes=2, hosts=("n3", "n1")) == ("n1", "n3")
    assert allocation.choose(nodes=2, hosts=()) == ("n1", "n2")
    assert allocation.choose(nodes=3, hosts=()) == ("n1", "n2", "n3")


def test_without_scontrol_nodes_are_reached_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert addresses_by_scontrol({"PATH": str(tmp_path)}, "n1") == {}

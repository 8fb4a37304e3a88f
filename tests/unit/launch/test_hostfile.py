"""Host files as people write them."""

import pytest

from ncclt.errors import InputError, NccltError, UsageError
from ncclt.launch.hostfile import Host, granted_hosts, parse_host, read_hostfile


def test_hosts(subtests):
    """User and port are ssh's business where they are left out."""
    cases = [
        ("gpu01", Host(name="gpu01")),
        ("me@gpu-01.cluster.example:2222", Host(name="gpu-01.cluster.example", user="me", port=2222)),
        ("10.0.0.7", Host(name="10.0.0.7")),
        ("gpu01:65535", Host(name="gpu01", port=65535)),
        ("gpu01:1", Host(name="gpu01", port=1)),
        ("root@[fe80::1]:22", Host(name="fe80::1", user="root", port=22)),
    ]
    for text, host in cases:
        with subtests.test(text=text):
            assert parse_host(text) == host


def test_what_is_no_host(subtests):
    """Above all nothing that ssh would take for an option."""
    cases = ["", "-oProxyCommand=x", "a b", "a:0", "a:65536", "a:b", "me@", "-l@x", "fe80::1", "a;b"]
    for text in cases:
        with subtests.test(text=text), pytest.raises(UsageError, match="is not a host"):
            parse_host(text)


def test_a_file(tmp_path):
    """Comments, blank lines and slots."""
    (tmp_path / "hosts").write_text("# rack 1\ngpu01 slots=8\n\n  me@gpu02:2222   slots=4 # new\ngpu03\nb slots=1\n")
    assert read_hostfile(tmp_path / "hosts") == (
        Host(name="gpu01", slots=8),
        Host(name="gpu02", user="me", port=2222, slots=4),
        Host(name="gpu03"),
        Host(name="b", slots=1),
    )


def test_one_host_may_have_two_ports(tmp_path):
    (tmp_path / "hosts").write_text("gpu01:22\ngpu01:2222\n")
    assert [host.label for host in read_hostfile(tmp_path / "hosts")] == ["gpu01:22", "gpu01:2222"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"# nothing\n", InputError),
        (b"a\nb\na\n", InputError),
        (b"\xff\xfe", InputError),
        (b"a max_slots=8\n", UsageError),
        (b"a slots=0\n", UsageError),
    ],
)
def test_files_that_are_refused(tmp_path, content, error):
    """Each with a hint."""
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(error) as caught:
        read_hostfile(tmp_path / "hosts")
    assert caught.value.hint


def test_no_file(tmp_path):
    """It says which."""
    with pytest.raises(NccltError, match="nowhere"):
        read_hostfile(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PBS_NODEFILE", "gpu07\ngpu07\ngpu03\ngpu03\n"),
        ("LSB_DJOB_HOSTFILE", "gpu07\ngpu03\n"),
        ("PE_HOSTFILE", "gpu07 8 all.q@gpu07 UNDEFINED\ngpu03 8 all.q@gpu03 UNDEFINED\n\n"),
    ],
)
def test_lists_in_files(tmp_path, variable, text):
    """Each node once, in the manager's order: rank 0 runs on the first one."""
    path = tmp_path / "nodes"
    path.write_text(text)
    assert granted_hosts({variable: str(path)}) == ("gpu07", "gpu03")


def test_lists_in_variables(tmp_path):
    """Slurm goes before a list that an outer manager has left behind."""
    assert granted_hosts({"LSB_MCPU_HOSTS": "gpu07 8 gpu03 8"}) == ("gpu07", "gpu03")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "PBS_NODEFILE": str(tmp_path / "gone")}
    assert granted_hosts(slurm) == ("n1", "n2")
    assert granted_hosts({}) == ()


def test_a_list_that_cannot_be_read(tmp_path):
    """As where the job's script runs on another machine than its nodes."""
    with pytest.raises(InputError, match="PBS_NODEFILE"):
        granted_hosts({"PBS_NODEFILE": str(tmp_path / "gone")})

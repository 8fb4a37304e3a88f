"""What a machine tells without starting anything."""

import pytest

from ncclt.health.doctor.machine import machine_facts
from ncclt.nccl.parameters import FILES


@pytest.fixture
def root(tmp_path):
    """A file system with the files of NCCL, two adapters and a CPU."""
    for folder in ("etc", "home", "proc", "sys/class/infiniband/mlx5_0/ports/1", "sys/class/infiniband/mlx5_1/ports/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/nccl.conf").write_text("NCCL_IB_SL=1\nNCCL_DEBUG=WARN\n")
    (tmp_path / "home/.nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\n")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (builder)\n"
    )
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / "sys/class/infiniband" / name / "ports/1"
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")
    return tmp_path


def _facts(root, **environ):
    return machine_facts(environ, root=root, home=root / "home")


def test_the_first_place_counts(root):
    """The environment, then ~/.nccl.conf, then /etc/nccl.conf."""
    facts = _facts(root, NCCL_IB_TC="2", PATH="/bin")

    assert {v.name: v.value for v in facts.variables()} == {
        "NCCL_IB_TC": "2",
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_SL": "1",
    }
    assert [(v.name, v.value) for v in facts.environment] == [("NCCL_IB_TC", "2")]
    assert facts.value("NCCL_DEBUG").evidence.source.endswith("home/.nccl.conf")


def test_a_named_file_takes_the_place_of_the_users(root):
    named = root / "named.conf"
    named.write_text("NCCL_ALGO=Ring\n")

    sources = [file.source for file in _facts(root, NCCL_CONF_FILE=str(named)).conf_files]
    assert sources == [str(named), str(root / "etc/nccl.conf")]


@pytest.mark.parametrize(("named", "said"), [("~/nccl.conf", "does not expand ~"), ("/none/nccl.conf", "no such file")])
def test_a_named_file_that_is_not_there(root, named, said):
    facts = _facts(root, NCCL_CONF_FILE=named)

    assert said in facts.file_problems[0].text
    assert [file.source for file in facts.conf_files] == [str(root / "etc/nccl.conf")]


def test_every_variable_that_names_a_missing_file_is_found(root):
    """One table of them all: files to read, libraries by path and by name, and files whose folder is missing."""
    facts = _facts(root, **dict.fromkeys(FILES, "/none/at/all"))
    by_name = _facts(root, NCCL_TUNER_PLUGIN="none-such")

    assert {problem.text.partition("=")[0] for problem in facts.file_problems} == set(FILES)
    assert "none-such and libnccl-tuner-none-such.so are in no folder" in by_name.file_problems[0].text
    (root / "etc/nccl.conf").write_text("# site\nNCCL_TOPO_FILE=/none/topo.xml\n")
    (problem,) = _facts(root).file_problems
    assert (problem.source, problem.line) == (str(root / "etc/nccl.conf"), 2)


def test_libraries_are_found_where_the_loader_looks(root):
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu/libnccl-net-ofi.so").touch()
    (root / "etc/ld.so.cache").write_bytes(b"glibc\0libnccl-profiler-inspector.so\0/opt/lib/x\0")
    (root / "site").mkdir()
    (root / "site/libnccl-tuner.so").touch()
    named = {
        "NCCL_NET_PLUGIN": "none,ofi",
        "NCCL_PROFILER_PLUGIN": "inspector",
        "NCCL_ENV_PLUGIN": "none",
        "NCCL_TUNER_PLUGIN": "libnccl-tuner.so",
        "LD_LIBRARY_PATH": str(root / "site"),
        "NCCL_DEBUG_FILE": str(root / "nccl.%h.%p.log"),
        "NCCL_GIN_PLUGIN": "STATIC_PLUGIN",
    }

    assert _facts(root, **named).file_problems == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [("proc/cpuinfo", "flags\t\t: fpu hypervisor lahf_lm\n"), ("sys/hypervisor/type", "xen\n")],
)
def test_virtual_machine_is_recognised(root, name, text):
    assert _facts(root).virtual is None
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)

    assert _facts(root).virtual is not None


def test_adapters_cpu_and_vendor(root):
    (root / "sys/class/dmi/id").mkdir(parents=True)
    (root / "sys/class/dmi/id/sys_vendor").write_text("Microsoft Corporation\n")
    facts = _facts(root)

    assert [(a.name, a.link_layer, a.gbps, a.active) for a in facts.adapters] == [
        ("mlx5_0", "InfiniBand", 25.0, True),
        ("mlx5_1", "InfiniBand", 25.0, False),
    ]
    assert (facts.cpu, facts.driver, facts.nvidia_driver) == ("amd", "570.86.15", "570.86.15")
    assert (facts.to_document()["driver"], facts.vendor) == ("570.86.15", "Microsoft Corporation")

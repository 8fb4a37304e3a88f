"""Saved files are told by their content, whatever they are called, and refused with a hint."""

import gzip
import shutil
from pathlib import Path

import pytest

from ncclt.errors import InputError
from ncclt.health.doctor import diagnose, files
from ncclt.health.doctor.files import read_files, read_logs

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "doctor"


def test_a_folder_is_read_whole(tmp_path):
    """Logs are one job, whatever file they lie in; what is nothing of ours is named."""
    shutil.copytree(GOLDEN / "old_pcie_box", tmp_path / "box")
    (tmp_path / "box" / "notes.txt").write_text("rack 7\n")
    facts = read_files([tmp_path / "box"])

    assert [matrix.source for matrix in facts.matrices] == ["topo.txt"]
    assert [report.source for report in facts.gpu_reports] == ["gpus.xml"]
    assert [file.source for file in facts.conf_files] == ["nccl.conf"]
    assert facts.log.sources == ["job.log"]
    assert facts.missing == ("notes.txt was skipped: it is not a file that the doctor can read",)


def test_one_bad_file_of_a_folder_does_not_hide_the_others(tmp_path):
    shutil.copytree(GOLDEN / "old_pcie_box", tmp_path / "box")
    (tmp_path / "box" / "a_empty.log").write_text("")
    (tmp_path / "box" / "b_cut.log.gz").write_bytes(gzip.compress(b"NCCL INFO " * 5000)[:60])
    facts = read_files([tmp_path / "box"])

    assert facts.log.sources == ["job.log"]
    assert [matrix.source for matrix in facts.matrices] == ["topo.txt"]
    empty, cut = facts.missing
    assert empty == f"skipped: {tmp_path}/box/a_empty.log is empty"
    assert cut.startswith(f"skipped: {tmp_path}/box/b_cut.log.gz is damaged or cut off")


def test_every_bad_file_that_was_named_is_in_the_refusal(tmp_path):
    for name, text in (("empty", ""), ("notes", "rack 7\n")):
        (tmp_path / name).write_text(text)
    good = GOLDEN / "old_pcie_box" / "topo.txt"
    with pytest.raises(InputError) as refused:
        read_files([tmp_path / "empty", good, tmp_path / "notes"])
    said = f"{tmp_path}/empty is empty; {tmp_path}/notes is not a file that the doctor can read"
    assert refused.value.message == said


def test_names_mean_nothing(tmp_path):
    (tmp_path / "a").write_bytes((GOLDEN / "healthy_h100" / "gpus.xml").read_bytes())
    (tmp_path / "b.conf").write_bytes(gzip.compress((GOLDEN / "healthy_h100" / "nccl.log").read_bytes()))

    facts = read_files([tmp_path / "a", tmp_path / "b.conf", tmp_path / "b.conf"])
    assert len(facts.gpu_reports[0].gpus) == 8
    assert facts.log.sources == ["b.conf"]
    assert facts.log.transports() == {"NET/IB/GDRDMA": 4}


def test_one_file_may_hold_matrix_and_log(tmp_path):
    """As scripts write that run one command after the other."""
    both = tmp_path / "out"
    both.write_text((GOLDEN / "sockets_a100/topo.txt").read_text() + (GOLDEN / "sockets_a100/node1.log").read_text())

    facts = read_files([both])
    assert facts.matrices[0].link(0, 1).word == "NV4"
    assert facts.log.transports() == {"NET/Socket": 1, "SHM": 1}


def test_binary_garbage_within_a_log_is_passed_over(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\x00" * 100 + b"\na:1:1 [0] NCCL INFO Using network IB\n" + bytes(range(256)) * 400)

    assert read_files([log]).log.processes[0].network.value == "IB"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"hello\n", "not a file that the doctor can read"),
        (b"PATH=/usr/bin\n", "not a file that the doctor can read"),
        (b"\x1f\x8b\x08\x00broken", "damaged"),
        (b"<nvidia_smi_log><gpu>", "cut off"),
        (b"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\n", "cut off"),
    ],
)
def test_other_files_are_refused(tmp_path, content, said):
    (tmp_path / "file").write_bytes(content)

    with pytest.raises(InputError, match=said) as refused:
        read_files([tmp_path / "file"])
    assert refused.value.hint


def test_missing_files_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_files([tmp_path / "none"])
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(InputError, match="symbolic links"):
        read_files([tmp_path / "link"])
    (tmp_path / "link").unlink()
    with pytest.raises(InputError, match="nothing in"):
        read_files([tmp_path])


def test_logs_are_read_up_to_a_total_size_and_the_cut_is_named(tmp_path, monkeypatch):
    """A long log takes no room from the others, and the verdict of what was cut is no clean one."""
    monkeypatch.setattr(files, "MOST_LOG_BYTES", 4000)
    for pid, lines in ((1, 500), (2, 3), (3, 3)):
        (tmp_path / f"{pid}.log").write_text(f"n:{pid}:1 [0] NCCL INFO Using network IB\n" * lines)
    paths = sorted(tmp_path.iterdir())
    cut = ("logs are read up to 0 MiB in total: the end of 1.log was not",)
    log, problems = read_logs(paths, ignored=frozenset())
    saved = read_files(paths)

    assert [process.pid for process in log.processes] == [2, 3, 1]
    assert log.lines == 4000 // len("n:1:1 [0] NCCL INFO Using network IB\n")
    assert (problems, saved.missing) == (cut, cut)
    assert saved.log.lines == log.lines
    assert diagnose(saved).verdict == "incomplete"

"""Contract of readers: subclass `ReaderContract` and define three fixtures."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pytest

from ncclt.core.message import Message
from ncclt.core.workload import Workload
from ncclt.errors import TraceError
from ncclt.profile.reader import Reader
from ncclt.testing.watchdog import WatchedContract

_FOREIGN = {"empty": b"", "text": b"one line of no log\n", "json": b'{"a": [1, 2]}', "bytes": bytes(range(256)) * 8}

JSON_FILE = '{"log":{},"stream":"stdout","time":"2025-01-06T10:00:00.123456789Z"}'

PREFIXES = {
    "docker, json-file": JSON_FILE,
    "mpirun --tag-output": "[1,0]<stdout>:{}",
    "mpirun --timestamp-output": "Mon Jan  6 10:00:00 2025<stdout>:{}",
    "mpirun with both": "Mon Jan  6 10:00:00 2025[1,0]<stdout>:{}",
    "prterun": "[prterun-node-0-77@1,0]<stdout>: {}",
    "srun --label": "0: {}",
    "srun --label, 16 tasks": " 0: {}",
    "mpiexec -prepend-rank": "[0] {}",
    "torchrun --redirects": "[default0]:{}",
    "torchrun --tee": "[rank0]:{}",
    "pdsh": "node-0: {}",
    "Ray": "(RayTrainWorker pid=123, ip=192.0.2.1) {}",
    "Ray with colours": "\x1b[36m(train_fn(rank=0) pid=123)\x1b[0m {}",
    "kubectl logs --prefix": "[pod/bench-launcher/main] {}",
    "kubectl logs --timestamps": "2025-01-06T10:00:00.123456789Z {}",
    "kubectl logs with both": "[pod/bench-launcher/main] 2025-01-06T10:00:00.123456789Z {}",
    "kubetail": "[bench-launcher-x1z] {}",
    "stern": "bench-launcher-x1z main {}",
    "stern with colours": "\x1b[33mbench-launcher-x1z\x1b[0m \x1b[35mmain\x1b[0m {}",
    "docker compose": "bench-1  | {}",
    "containerd": "2025-01-06T10:00:00.123456789Z stdout F {}",
    "CloudWatch Logs Insights": "  | 2025-01-06T10:00:00.123-07:00 | {}",
    "aws logs tail": "2025-01-06T10:00:00.123000+00:00 bench/main/0123abcd {}",
    "syslog": "Jan  6 10:00:00 node-0 bench[123]: {}",
    "syslog, RFC 5424": "<134>1 2025-01-06T10:00:00Z node-0 bench 123 - - {}",
    "journalctl -o short-iso": "2025-01-06T10:00:00+0000 node-0 bench[123]: {}",
    "ts": "Jan 06 10:00:00 {}",
    "ts -s": "00:00:01 {}",
    "ts %.s": "1736157600.123456 {}",
    "ts [format]": "[2025-01-06 10:00:00] {}",
    "GitHub Actions": "2025-01-06T10:00:00.1234567Z {}",
    "gh run view --log": "bench\tUNKNOWN STEP\t2025-01-06T10:00:00.1234567Z {}",
    "a quoted mail": "> {}",
    "a quoted quote": "> > {}",
    "colours": "\x1b[0m{}\x1b[0m",
    "colours by cat -v": "^[[1;32m{}^[[0m",
    "colours without escapes": "[36m{}[0m",
    "Python's logging": "2025-01-06 10:00:00,123 - root - INFO - {}",
    "glog": "I0106 10:00:00.123456 123 main.cc:12] {}",
    "Loki": '2025-01-06T10:00:00Z {app="bench", pod="x"} {}',
    "a launcher of one's own": "[Rank 0] | worker-0 > {}",
    "kubectl and mpirun": "2025-01-06T10:00:00.123456789Z [1,0]<stdout>:{}",
    "GitHub Actions, pdsh and srun": "2025-01-06T10:00:00.1234567Z node-0: 0: {}",
}
"""Prefixes of log lines, by program."""


def message_table(
    workload: Workload, fields: Sequence[str] = ("collective", "dtype", "size_bytes", "group_size")
) -> dict[tuple[object, ...], float]:
    """Return fields of each message -> its calls per step."""
    return {tuple(getattr(m.message, field) for field in fields): m.calls_per_step for m in workload.messages}


def _is_text(content: bytes) -> bool:
    return b"\0" not in content and not content.startswith(b"\x80")


class ReaderContract(WatchedContract):
    """The contract of `ncclt.profile.reader.Reader` as tests.

    Example:
        class TestMyReader(ReaderContract):
            @pytest.fixture
            def reader(self) -> Reader: ...
            @pytest.fixture
            def sample(self, tmp_path: Path) -> Sequence[Path]: ...
            @pytest.fixture
            def expected(self) -> Mapping[Message, float]: ...
    """

    @pytest.fixture
    def reader(self) -> Reader:
        """Return the reader under test."""
        raise NotImplementedError("give the reader under test")

    @pytest.fixture
    def sample(self) -> Sequence[Path]:
        """Return the files of one small recorded job."""
        raise NotImplementedError("give the files of one job")

    @pytest.fixture
    def expected(self) -> Mapping[Message, float]:
        """Return the calls per step of every message of the sample, computed by hand."""
        raise NotImplementedError("give message -> calls per step")

    def test_name_is_one_word(self, reader: Reader) -> None:
        """The name is used on the command line."""
        assert reader.name
        assert not set(reader.name) & set(" \t\n,:")

    def test_recognises_by_content(self, reader: Reader, sample: Sequence[Path], tmp_path: Path) -> None:
        """A file is recognised whatever its name."""
        for number, path in enumerate(sample):
            bare = tmp_path / f"renamed{number}"
            bare.write_bytes(path.read_bytes())
            assert reader.recognises(bare)

    def test_foreign_files_are_neither_recognised_nor_read(self, reader: Reader, tmp_path: Path) -> None:
        """A file of another kind is refused with a hint, never read as an empty workload."""
        for kind, content in _FOREIGN.items():
            foreign = tmp_path / kind
            foreign.write_bytes(content)
            assert not reader.recognises(foreign), kind
            with pytest.raises(TraceError) as caught:
                reader.read([foreign], name="foreign")
            assert caught.value.hint, kind

    def test_missing_file_is_refused(self, reader: Reader, tmp_path: Path) -> None:
        """A path that does not exist is a `TraceError`, not an operating-system error."""
        assert not reader.recognises(tmp_path / "missing")
        with pytest.raises(TraceError):
            reader.read([tmp_path / "missing"], name="missing")

    def test_counts_every_call_once(
        self, reader: Reader, sample: Sequence[Path], expected: Mapping[Message, float]
    ) -> None:
        """The messages and their calls per step are those computed by hand."""
        workload = reader.read(sample, name="sample")
        calls_of = {calls.message: calls.calls_per_step for calls in workload.messages}
        assert calls_of == pytest.approx(dict(expected))

    def test_cut_gzip_is_refused(self, reader: Reader, sample: Sequence[Path], tmp_path: Path) -> None:
        """Half a file would be half the calls."""
        for path in sample:
            data = path.read_bytes()
            if data[:2] == b"\x1f\x8b" or data.startswith(b"SQLite"):
                continue  # packed already, or never packed
            cut = tmp_path / f"cut-{path.name}"
            cut.write_bytes(gzip.compress(data * 200)[:-50])
            with pytest.raises(TraceError):
                reader.read([cut], name="cut")

    def test_order_of_files_is_of_no_matter(self, reader: Reader, sample: Sequence[Path]) -> None:
        """A shell may expand the names of the ranks in any order."""
        assert reader.read(list(reversed(sample)), name="sample") == reader.read(sample, name="sample")

    def test_same_file_twice_is_refused(self, reader: Reader, sample: Sequence[Path]) -> None:
        """One rank counted twice would be wrong and look right."""
        with pytest.raises(TraceError):
            reader.read([*sample, sample[0]], name="twice")

    def test_provenance_is_filled_in(self, reader: Reader, sample: Sequence[Path]) -> None:
        """Source and files are named, the date is ISO or missing, and the document can be read back."""
        workload = reader.read(sample, name="sample")
        origin = workload.provenance
        assert workload.name == "sample"
        assert origin.source == reader.name
        assert all(path.name in origin.detail.get("files", "") for path in sample)
        assert not origin.created or date.fromisoformat(origin.created)
        assert Workload.from_document(workload.to_document()) == workload

    def test_prefixes_of_launchers_change_nothing(
        self, reader: Reader, sample: Sequence[Path], expected: Mapping[Message, float], tmp_path: Path
    ) -> None:
        """A file is read alike, whatever launchers and log collectors have put in front of its lines."""
        packed = {path: path.read_bytes() for path in sample}
        files = {path: gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for path, data in packed.items()}
        texts = {path: data.decode("utf-8-sig") for path, data in files.items() if _is_text(data)}
        if len(texts) < len(files):
            return  # a database or an archive passes through no launcher
        for number, (launcher, form) in enumerate(PREFIXES.items()):
            folder = tmp_path / f"prefixed{number}"
            folder.mkdir()
            for path, text in texts.items():
                lines = (json.dumps(f"{line}\n") if form == JSON_FILE else line for line in text.splitlines())
                (folder / path.name).write_text("".join(form.replace("{}", line, 1) + "\n" for line in lines))
            prefixed = [folder / path.name for path in texts]
            assert all(map(reader.recognises, prefixed)), launcher
            prefixed_calls = {m.message: m.calls_per_step for m in reader.read(prefixed, name="sample").messages}
            assert prefixed_calls == pytest.approx(dict(expected)), launcher

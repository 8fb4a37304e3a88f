"""What every reader must do: subclass `ReaderContract` and define three fixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import pytest

from ncclt.core.message import Message
from ncclt.core.workload import Workload
from ncclt.errors import TraceError
from ncclt.profile.reader import Reader

_FOREIGN = {"empty": b"", "text": b"one line of no log\n", "json": b'{"a": [1, 2]}', "bytes": bytes(range(256)) * 8}


class ReaderContract:
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

    @pytest.mark.parametrize("kind", sorted(_FOREIGN))
    def test_foreign_files_are_neither_recognised_nor_read(self, reader: Reader, kind: str, tmp_path: Path) -> None:
        """A file of another kind is refused with a hint, never read as an empty workload."""
        foreign = tmp_path / kind
        foreign.write_bytes(_FOREIGN[kind])
        assert not reader.recognises(foreign)
        with pytest.raises(TraceError) as caught:
            reader.read([foreign], name="foreign")
        assert caught.value.hint

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
        found = {calls.message: calls.calls_per_step for calls in workload.messages}
        assert found == pytest.approx(dict(expected))

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

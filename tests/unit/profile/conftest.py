"""A builder of small Kineto traces."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclt.core.workload import Workload
from ncclt.profile import read_workload
from ncclt.profile.reader import Reader

Row = dict[str, Any]


class TraceBuilder:
    """Writes events one after the other, 10 µs apart, on one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self.head: Row = {"schemaVersion": 1, "deviceProperties": []}
        self._ids = iter(range(1, 100_000))

    def job(self, rank: int | str | None, world_size: int, backend: str = "nccl", **more: Any) -> "TraceBuilder":
        info = {"backend": backend, "rank": rank, "world_size": world_size, **more}
        self.head["distributedInfo"] = {k: v for k, v in info.items() if v is not None}
        return self

    def event(self, name: str, category: str, *, at: float | None = None, dur: float = 5, **args: Any) -> Row:
        number = next(self._ids)
        row = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "dur": dur, "args": args}
        row["ts"] = 10.0 * number if at is None else at
        self.rows.append(row)
        return row

    def comm(self, collective: str, elements: int, out: int | None = None, **args: Any) -> Row:
        """Add a record_param_comms with metadata."""
        facts = {
            "Collective name": collective,
            "In msg nelems": elements,
            "Group size": 2,
            "dtype": "Float",
            "Out msg nelems": elements if out is None else out,
            "Process Group Name": "0",
        }
        return self.event("record_param_comms", "cpu_op", **{**facts, **args})

    def shaped(self, name: str, *tensors: tuple[list[int], str], category: str | None = None) -> Row:
        """Add an operator or annotation with input shapes."""
        kind = category or ("cpu_op" if name.startswith("c10d") else "user_annotation")
        shapes, types = [shape for shape, _ in tensors], [dtype for _, dtype in tensors]
        return self.event(name, kind, **{"Input Dims": shapes, "Input type": types})

    def step(self, number: int, start: float, end: float) -> Row:
        return self.event(f"ProfilerStep#{number}", "user_annotation", at=start, dur=end - start)

    def document(self) -> Row:
        return {**self.head, "traceEvents": self.rows}

    def write(self, name: str = "trace.json") -> Path:
        path = self.folder / name
        data = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path


@pytest.fixture(scope="session")
def traces(shared_data: Path) -> Path:
    """Return the folder of public traces."""
    return shared_data / "traces"


@pytest.fixture(scope="session")
def extracted(traces: Path) -> dict[str, list[Row]]:
    """Return file -> the rows that an independent extractor has read from it."""
    entries = json.loads((traces / "expected.json").read_text())
    return {file: entry.get("messages", []) for file, entry in entries.items()}


@pytest.fixture(scope="session")
def read_traces(traces: Path) -> Callable[..., Workload]:
    """Return a reader of public traces by their names."""
    return lambda *files: read_workload([traces / file for file in files], name="real")


@pytest.fixture
def read_files(tmp_path: Path) -> Callable[..., Workload]:
    """Return a function that reads documents, or rows of text or JSON, of which each is written to a file."""

    def read(reader: Reader, *files: Any) -> Workload:
        paths = []
        for number, rows in enumerate(files):
            lines = [
                row if isinstance(row, str) else json.dumps(row) for row in ([rows] if isinstance(rows, dict) else rows)
            ]
            paths.append(tmp_path / f"{number}.log")
            paths[-1].write_text("\n".join(lines) + "\n")
        return reader.read(paths, name="job")

    return read


@pytest.fixture
def new_trace(tmp_path: Path) -> Callable[[], TraceBuilder]:
    """Return a maker of empty traces."""
    return lambda: TraceBuilder(tmp_path)


@pytest.fixture
def trace(new_trace: Callable[[], TraceBuilder]) -> TraceBuilder:
    """Return an empty trace of rank 0 of 2 over NCCL."""
    return new_trace().job(0, 2)

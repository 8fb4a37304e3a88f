"""The child process that holds the ranks: one JSON command per line on stdin, one answer each on a pipe of its own.

    open       {}                                                    -> facts of GPU and NCCL
    use        {"parameters": [[name, value], ...]}                  -> communicators with these are open
    measure    {"setting": ..., "messages": [...], "timing": ...}    -> outcome, measurements; "rows": those of a policy
    check      {"messages": [...]}                                   -> wrong elements, nothing is timed
    publish    {"rows": [...]}                                       -> generation of the shared table
    close      {}                                                    -> communicators are closed, the process ends

It ends by itself when its stdin does, and after any command that failed or ran out of time: whatever such a command
left behind on the GPU goes away with the process.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from device import CudaCallError, Device, HungError
from messages import covers
from nccl import Library, NcclCallError
from ranks import Ranks, Timing
from recipes import RECIPES

from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import Setting
from ncclt.core.trial import Outcome
from ncclt.errors import NccltError
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_session import RankTable
from ncclt.nccl.tuner_plugin.shared_table import LAYOUT, VARIABLE, lay_out_table
from ncclt.nccl.tuner_table import PluginRow

_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

_ORPHAN_S = 2.0
"""How long the end of stdin may come before the signal that the parent is gone."""

_ABORT_S = 10.0
"""How long NCCL may take to give communicators up before the process ends without."""


class Worker:
    """The ranks and the table that switches them.

    Args:
        options: what the parent wrote on the command line.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._told = options
        self._ranks: Ranks | None = None
        self._version = NcclVersion(0, 0)
        self._table: RankTable | None = None
        self._generation = 0

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Obey one command; what NCCL or the GPU do to it is part of the answer."""
        deadline = time.monotonic() + float(command["limit_s"])
        try:
            return {"outcome": Outcome.OK, **getattr(self, f"_{command['do']}")(command, deadline)}
        except HungError as error:
            return {"outcome": Outcome.TIMEOUT, "detail": str(error), "fatal": True}
        except threading.BrokenBarrierError:
            return {"outcome": Outcome.TIMEOUT, "detail": "a rank did not come to the start in time", "fatal": True}
        except (NcclCallError, CudaCallError) as error:
            return {"outcome": Outcome.CRASHED, "detail": str(error), "fatal": True}
        except NccltError as error:
            return {"outcome": Outcome.INVALID, "detail": error.message, "fatal": self._ranks is None}

    def abort(self) -> None:
        """Give everything up, within a limit."""
        if self._ranks is not None:
            thread = threading.Thread(target=_quietly, args=(self._ranks.abort,), daemon=True)
            thread.start()
            thread.join(_ABORT_S)

    def _open(self, _command: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        told, recipe = self._told, RECIPES[self._told["recipe"]]
        source = Path(told["nccl"])
        version = Library(source).version()
        self._version = NcclVersion.parse(version)
        recipe.check(self._version, told["ranks"])
        device = Device(Path(told["cuda"]) if told["cuda"] else None)
        if VARIABLE in os.environ:
            self._table = RankTable(LAYOUT)
            os.environ[VARIABLE] = self._table.path
        self._ranks = Ranks(
            device,
            source,
            recipe,
            count=told["ranks"],
            scratch=Path(told["scratch"]),
            room_bytes=told["room_bytes"],
            deadline=deadline,
        )
        self._ranks.use((), deadline=deadline)
        return {"nccl_version": version, **asdict(device.facts())}

    def _use(self, command: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        assert self._ranks is not None
        self._ranks.use(tuple((name, value) for name, value in command["parameters"]), deadline=deadline)
        return {}

    def _measure(self, command: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        assert self._ranks is not None
        setting, wanted = Setting.from_document(command["setting"]), [_message(row) for row in command["messages"]]
        if outside := [m for m in wanted if not covers(m, self._told["ranks"])]:
            return {"outcome": Outcome.INVALID, "detail": f"{outside[0].label} cannot be measured by these ranks"}
        self._ranks.use(setting.parameters, deadline=deadline)
        if "rows" in command:
            self._publish(command, deadline)
        else:
            self._switch(setting, {m.collective for m in wanted})
        rows, timing = [], Timing(**command["timing"])
        for message in wanted:
            taken_times = self._ranks.measure(message, timing, deadline=deadline)
            rows.append(asdict(taken_times))
        wrong = sum(row["wrong"] for row in rows)
        return {"outcome": Outcome.WRONG_RESULT if wrong else Outcome.OK, "measurements": rows, "detail": _said(wrong)}

    def _check(self, command: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        assert self._ranks is not None
        wrong = [self._ranks.check(_message(row), deadline=deadline) for row in command["messages"]]
        return {"wrong": wrong}

    def _publish(self, command: Mapping[str, Any], _deadline: float) -> dict[str, Any]:
        self._write_table([PluginRow(**row) for row in command["rows"]])
        return {"generation": self._generation}

    def _write_table(self, rows: list[PluginRow]) -> None:
        assert self._table is not None
        self._generation += 1
        self._table.publish(**lay_out_table(rows, self._generation))

    def _close(self, _command: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        if self._ranks is not None:
            self._ranks.close(deadline=deadline)
            self._ranks = None
        return {"fatal": True}

    def _switch(self, setting: Setting, collectives: set[Collective]) -> None:
        """Force a setting by the shared table: one row per collective that has the pair."""
        rows = []
        for collective in sorted(collectives):
            applied = setting.applied_to(collective, version=self._version)
            if applied.algorithm and applied.protocol:
                rows.append(
                    PluginRow(
                        collective=COLLECTIVE_WORDS[collective],
                        algorithm=applied.algorithm.value,
                        protocol=applied.protocol.value,
                        channels=applied.channels or 0,
                    )
                )
        if self._table is None and rows:
            raise NccltError("there is no shared table to force a setting by", hint="give the plugin")
        if self._table is not None:
            self._write_table(rows)


def _said(wrong: int) -> str:
    return f"{wrong} elements came out wrong" if wrong else ""


def _message(row: Mapping[str, Any]) -> Message:
    return Message(
        collective=Collective(row["collective"]),
        dtype=row["dtype"],
        size_bytes=row["size_bytes"],
        group_size=row["group_size"],
    )


def _quietly(action: Any) -> None:
    """Call something whose failure changes nothing any more; the process ends after it."""
    try:
        action()
    except NcclCallError as error:
        print(f"worker.py: {error}", file=sys.stderr, flush=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    worker = Worker(options)

    def leave(_number: int, _frame: object) -> None:
        shutil.rmtree(options["scratch"], ignore_errors=True)
        os._exit(1)

    # A parent that is killed cannot end us, and with ranks that hang nobody sees that stdin is closed. The main thread
    # never waits inside NCCL, so it hears the signal.
    signal.signal(signal.SIGTERM, leave)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    fatal = False
    try:
        with os.fdopen(options["answers"], "w", encoding="utf-8") as answers:
            for line in sys.stdin:
                answer = worker.answer(json.loads(line))
                fatal = bool(answer.pop("fatal", False))
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
                if fatal:
                    break
        if fatal:
            worker.abort()
        else:
            # Its pipe closes before its death is told: wait for the signal, which also removes the scratch folder.
            time.sleep(_ORPHAN_S)
    finally:
        sys.stderr.flush()
        # Threads that hang inside NCCL would keep an orderly exit waiting for ever.
        os._exit(0)


if __name__ == "__main__":
    main()

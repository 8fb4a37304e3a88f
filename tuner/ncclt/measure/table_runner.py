"""The runner that forces by a table of the tuner plugin in every launch: nccl-tests as a job is delivered to.

Not tested on a GPU; tested with a stand-in for nccl-tests that loads the plugin as NCCL does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.trial import TrialResult
from ncclt.errors import BenchmarkError
from ncclt.measure.persistent.attested import Attested
from ncclt.measure.runner import LaunchedRunner
from ncclt.nccl.switching import ForcedState
from ncclt.nccl.tuner_table import ANY, communicator_shape, table_row, table_text

_TABLE, _REPORTS = "table.csv", "reports"


class TableRunner(LaunchedRunner):
    """Measures settings and whole policies with a table for the tuner plugin.

    A launch of nccl-tests has one collective, so a trial runs one launch per collective with the same table. The
    default loads the plugin too, with an empty table. If the plugin reports another choice than the table on any rank,
    the trial is `substituted`.

    Args:
        parts: as `LaunchedRunner` takes them, with a plugin. All ranks read and write `scratch`, which holds the table
            and the reports.
    """

    def _environment(self, state: ForcedState, folder: Path | None) -> Mapping[str, str]:
        assert folder is not None, "all ranks share the scratch folder"
        reports = {"NCCLT_POLICY": str(folder / _TABLE), "NCCLT_PLUGIN_REPORT": str(folder / _REPORTS)}
        return {**self._loading, **reports, **dict(state.variables)}

    def _trial(
        self, forced: Setting | Policy, state: ForcedState, messages: Sequence[Message], folder: Path | None
    ) -> TrialResult:
        assert folder is not None, "all ranks share the scratch folder"
        (folder / _TABLE).write_text(self._table(state, forced.digest()), encoding="ascii")
        (folder / _REPORTS).mkdir()
        return super()._trial(forced, state, messages, folder)

    def _attest(
        self, result: TrialResult, state: ForcedState, messages: Sequence[Message], folder: Path | None
    ) -> TrialResult:
        assert folder is not None, "all ranks share the scratch folder"
        rules = tuple(rule for rule in state.rules if any(map(rule.matches, messages)))
        reports = _reported(folder / _REPORTS)  # read for the default too: the next command must not find them
        return Attested().judge(result, reports, replace(state, rules=rules), messages)

    def _table(self, state: ForcedState, digest: str) -> str:
        nodes, ranks = self.cluster.nodes, self.cluster.world_size
        rows = []
        for rule in state.rules:
            # What is forced on all messages of a trial is not confined to the whole job.
            shape = communicator_shape(rule, nodes=nodes, ranks=ranks) if rule.group_size else (ANY, ANY)
            rows.append(table_row(rule, nodes=shape[0], ranks=shape[1]))
        return table_text(rows, table_id=f"trial-{digest}", version=self._version, nodes=nodes, ranks=ranks)


def _reported(folder: Path) -> Iterator[object]:
    """Yield the lines of the plugin's reports, and remove them: the next command of the trial writes its own."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)
        except ValueError as error:
            raise BenchmarkError(f"the report {path.name} of the plugin cannot be read: {error}") from error
        path.unlink()

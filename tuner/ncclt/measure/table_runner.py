"""The runner that forces by a table of the tuner plugin in every launch: nccl-tests as a job is delivered to.

Not tested on a GPU; tested with a stand-in for nccl-tests that loads the plugin as NCCL does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import BenchmarkError, SettingError
from ncclt.launch.launcher import LaunchPlan
from ncclt.launch.process.reaper import results_folder
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand
from ncclt.measure.persistent.attested import Attested
from ncclt.measure.runner import SOME_FOLDER, LaunchedRunner, RunnerParts
from ncclt.nccl.switching import ForcedState, force_policy, force_setting, table_carries
from ncclt.nccl.tuner_table import ANY, communicator_shape, table_row, table_text

_TABLE, _REPORTS = "table.csv", "reports"


class TableRunner(LaunchedRunner):
    """Measures settings and whole policies by launches in which the tuner plugin reads a table.

    A launch of nccl-tests has one collective; a trial launches one after another, all with the same table. The plugin
    is loaded for the default too, with a table without rows. The choices of the table are compared with those
    that the plugin reports of all ranks: another choice makes the trial `substituted`.

    Args:
        plugin: NCCL's tuner plugin of ncclt as the ranks see it.
        parts: as `RealRunner` takes them. All ranks read and write `scratch`: the table and the reports are there.
    """

    def __init__(self, *, plugin: Path, **parts: Unpack[RunnerParts]) -> None:
        super().__init__(scratch_is_shared=True, **parts)
        self._plugin = plugin
        self._version = self.cluster.version

    def applies(self, policy: Policy) -> bool:
        """Return True if a table carries every rule of the policy."""
        return table_carries(policy, self._version)

    def plans(self, setting: Setting, messages: Sequence[Message]) -> tuple[LaunchPlan, ...]:
        """Return the launches of one trial as they would be made, and make none; raises as `LaunchedRunner` does."""
        variables = self._environment(self._force(setting, messages), SOME_FOLDER)
        return self._plans(variables, self._paced(messages).commands(messages, folder=SOME_FOLDER))

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Measure all messages under `setting`; raises as `LaunchedRunner` does."""
        try:
            wanted = self._force(setting, messages)
        except SettingError as error:
            return TrialResult(outcome=Outcome.INVALID, detail=error.message, by_plugin=True)
        return self._measure(setting, wanted, messages, repeat=repeat)

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Measure all messages under a table with every rule of the policy; raises as `LaunchedRunner` does."""
        return self._measure(policy, force_policy(policy, self._variables), messages, repeat=repeat)

    def _force(self, setting: Setting, messages: Sequence[Message]) -> ForcedState:
        return force_setting(
            setting,
            version=self._version,
            collectives=[m.collective for m in messages],
            plugin=True,
            variables=self._variables,
        )

    def _environment(self, wanted: ForcedState, folder: Path) -> Mapping[str, str]:
        return {
            **self._loading(self._plugin),
            "NCCLT_POLICY": str(folder / _TABLE),
            "NCCLT_PLUGIN_REPORT": str(folder / _REPORTS),
            **dict(wanted.variables),
        }

    def _measure(
        self, forced: Setting | Policy, wanted: ForcedState, messages: Sequence[Message], *, repeat: int
    ) -> TrialResult:
        digest = forced.digest()
        # Readable by its owner alone and short-lived: nccl-tests writes the environment there.
        with results_folder(f"ncclt-{digest}-{repeat}-", parent=self._scratch) as folder:
            (folder / _TABLE).write_text(self._table(wanted, digest), encoding="ascii")
            (folder / _REPORTS).mkdir()

            def attested(command: BenchmarkCommand, result: TrialResult) -> TrialResult:
                if result.outcome is not Outcome.OK:
                    return result
                return _attested(result, wanted, command, _reported(folder / _REPORTS))

            variables = self._environment(wanted, folder.absolute())
            result = self._trial(forced, variables, messages, folder, attested=attested)
        return replace(result, by_plugin=True)

    def _table(self, wanted: ForcedState, digest: str) -> str:
        cluster = self.cluster
        rows = []
        for rule in wanted.rules:
            nodes, ranks = communicator_shape(rule, nodes=cluster.nodes, ranks=cluster.world_size)
            # What is forced on all messages of a trial is not confined to the whole job.
            rows.append(
                table_row(rule, nodes=nodes, ranks=ranks) if rule.group_size else table_row(rule, nodes=ANY, ranks=ANY)
            )
        return table_text(
            rows, table_id=f"trial-{digest}", version=self._version, nodes=cluster.nodes, ranks=cluster.world_size
        )


def _reported(folder: Path) -> Iterator[object]:
    """Yield the lines of the plugin's reports, and remove them: the next command of the trial writes its own."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)
        except ValueError as error:
            raise BenchmarkError(f"the report {path.name} of the plugin cannot be read: {error}") from error
        path.unlink()


def _attested(
    result: TrialResult, wanted: ForcedState, command: BenchmarkCommand, lines: Iterator[object]
) -> TrialResult:
    """Return the result of a command, or `substituted` where NCCL made another choice than the table."""
    concerned = tuple(rule for rule in wanted.rules if any(rule.matches(m) for m in command.messages))
    try:
        reported = list(lines)  # read in any case: the next command must not find them
        problem = Attested().check(reported, replace(wanted, rules=concerned), command.messages) if concerned else ""
    except BenchmarkError as error:
        return replace(result, outcome=Outcome.INVALID, detail=error.message, measurements=())
    if not problem:
        return result
    detail = f"{problem}; the NCCL default ran instead"
    return replace(result, outcome=Outcome.SUBSTITUTED, detail=detail, measurements=())

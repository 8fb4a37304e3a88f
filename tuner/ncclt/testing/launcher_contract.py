"""Contract of launchers: subclass it in a test module and return a launcher."""

from __future__ import annotations

import secrets
import sys
from abc import ABC, abstractmethod

import pytest

from ncclt.errors import UsageError
from ncclt.launch.launcher import Launcher, LaunchResult, parse_options
from ncclt.launch.process.process_tree import members
from ncclt.testing.watchdog import WatchedContract

_PATIENT_S = 120.0

_LIMITS_S = (1.0, 4.0, 16.0, 64.0)
"""Launchers need time to start, more on a busy machine: the first limit within which a command starts is enough."""

_STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("begun", flush=True)
time.sleep(600)
"""
"""Ignores SIGTERM, as does its grandchild, which has another session and another parent."""


class LauncherContract(WatchedContract, ABC):
    """Tests of the contract in `ncclt.launch.launcher.Launcher`; the commands are Python of this environment."""

    limit_s = 300.0

    @abstractmethod
    def launcher(self) -> Launcher:
        """Return the launcher under test."""

    @abstractmethod
    def refused(self) -> Launcher:
        """Return one whose launches its own program refuses, for example because of an unknown option."""

    def test_has_a_name(self) -> None:
        """The name is a word that can be typed."""
        assert self.launcher().name.isidentifier()

    def test_attributes_are_readable_from_the_class(self) -> None:
        """Capabilities are known before a launcher is created, and fit together."""
        kind = type(self.launcher())
        traits = ("shares_files", "starts_ranks", "needs_torch", "uses_allocation", "chooses_nodes", "reaches_back")
        assert [name for name in traits if not isinstance(getattr(kind, name), bool)] == []
        assert not (kind.shares_files and (kind.chooses_nodes or kind.uses_allocation))
        keys = [option.key for option in kind.options]
        assert len(keys) == len(set(keys))
        assert [o.key for o in kind.options if not o.help or "=" in o.key or o.metavar != o.metavar.upper()] == []
        with pytest.raises(UsageError, match="has no option 'no-such-option=1'"):
            parse_options(kind, ["no-such-option=1"])

    def test_options_refuse_empty_values(self) -> None:
        """A value is never empty, for example from an unset variable of a script."""
        kind = type(self.launcher())
        for option in kind.options:
            key = f"{option.key}name" if option.key.endswith(".") else option.key
            with pytest.raises(UsageError, match="its value is empty"):
                parse_options(kind, [f"{key}="])

    def test_plan_is_pure(self) -> None:
        """The same request gives the same plan, and the plan contains everything that was requested."""
        launcher = self.launcher()
        plans = [
            launcher.plan(("prog", "-b", "8"), variables={"NCCL_ALGO": "Ring", "A": "1"}, timeout_s=5.0)
            for _ in range(2)
        ]
        assert plans[0] == plans[1]
        # Some launchers write the command into a script or a manifest.
        plan = plans[0]
        plan_text = " ".join((*plan.argv, *map(str, plan.set_env), *(text for _name, text in plan.files)))
        assert [word for word in ("prog", "-b", "8", "NCCL_ALGO", "Ring") if word not in plan_text] == []
        assert plans[0].timeout_s == 5.0
        assert hash(plans[0]) == hash(plans[1])

    def test_what_a_command_gets_and_gives(self) -> None:
        """Variables reach it; both outputs, the time and an exit code come back, a failure too; no kill before matters.

        One launch for all of it, since some launchers take seconds; kill may come from a user who cannot know that
        nothing is running.
        """
        launcher = self.launcher()
        launcher.kill()
        code = "import os, sys; print(os.environ['NCCL_ALGO']); print('right', file=sys.stderr); sys.exit(7)"
        result = self._run(code, variables={"NCCL_ALGO": "Ring"}, launcher=launcher)
        assert "Ring" in result.stdout
        assert "right" in result.stderr
        assert "right" not in result.stdout
        assert result.exit_code == 7, "a failing command is a result, not an exception"
        assert not result.not_started, "a command that failed has started"
        assert not result.killed
        assert result.wall_s > 0

    def test_time_is_limited_and_nothing_is_left(self) -> None:
        """A command that never ends is ended with all it has started, and what it had printed is kept."""
        for limit_s in _LIMITS_S:
            word = secrets.token_hex(8)
            result = self._run(_STUBBORN, variables={"NCCLT_CONTRACT": word}, timeout_s=limit_s)
            assert result.timed_out
            assert not result.survivors
            assert not result.left_elsewhere
            assert not members(word), "processes with the launch's variables still run"
            if "begun" in result.stdout:
                break
        else:
            raise AssertionError(f"the command did not begin within {limit_s} s")

    def test_missing_program_is_not_started(self) -> None:
        """A program that does not exist gives a reason."""
        launcher = self.launcher()
        result = launcher.run(launcher.plan(("/nowhere/all_reduce_perf",), variables={}, timeout_s=_PATIENT_S))
        assert result.exit_code in (None, 126, 127), "not to be found is told apart from a crash"
        assert "all_reduce_perf" in result.not_started

    def test_refused_launch_is_not_started(self) -> None:
        """A failure before the first process of the command is no failure of the command, whatever its exit code."""
        result = self._run("print('begun')", launcher=self.refused())
        assert result.exit_code != 0
        assert result.not_started
        assert "begun" not in result.stdout

    def _run(
        self,
        code: str,
        *,
        variables: dict[str, str] | None = None,
        timeout_s: float = _PATIENT_S,
        launcher: Launcher | None = None,
    ) -> LaunchResult:
        launcher = launcher or self.launcher()
        return launcher.run(launcher.plan((sys.executable, "-c", code), variables=variables or {}, timeout_s=timeout_s))

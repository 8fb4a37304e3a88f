"""The stages of `ncclt autotune`: record, look, tune, compare, and the command that uses the result."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from ncclt.cli.exits import EXIT_INTERRUPTED, interruptible
from ncclt.cli.options import storage_option, words_of
from ncclt.cli.profile import print_profile
from ncclt.cli.render import print_headline, print_json, say
from ncclt.cli.tune import build_result_document, print_result, run_study
from ncclt.cli.verify import KEEP_BYTES, compare, print_verification
from ncclt.core.budget import Budget
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.verification import Verification
from ncclt.core.workload import Workload
from ncclt.errors import NotFoundError
from ncclt.launch.local import LocalLauncher
from ncclt.measure.open_testbed import choose_cluster, launched_testbed, on_cpus, open_testbed
from ncclt.measure.target import Target
from ncclt.measure.testbed import Testbed
from ncclt.nccl.variables import split_variables
from ncclt.pipeline.autotune import (
    build_job_name,
    choose_target,
    describe_ceiling,
    explain_low_ceiling,
    explain_no_comparison,
    find_last_comparison,
    record_job,
)
from ncclt.pipeline.tune import TuneRequest, TuneResult, build_study
from ncclt.profile.views.exposure import bound_gain
from ncclt.prove.comparison import Comparison
from ncclt.prove.step_times import can_resume
from ncclt.prove.tuned_arm import prepare_comparison
from ncclt.store import open_store, open_to_read
from ncclt.store.location import locate
from ncclt.store.store import Store

AUTOTUNE_SCHEMA = 1
"""Version of the document that `autotune --json` prints."""


def _words_of_fields(record: Any, *names: str) -> list[str]:
    """Return the options of some fields of a record."""
    return words_of(replace(type(record)(), **{name: getattr(record, name) for name in names}))


@dataclass(slots=True, kw_only=True)
class Autotune:
    """The stages for a job, or for a stored workload of one.

    Attributes:
        argv: the job's command; empty = there is none.
        name: of the workload; empty = that of the job.
        is_recorded: the workload comes from this run's own stage; otherwise it was there before.
        window: steps that are recorded and timed; None = the defaults of both.
        target, budget, how: of the trials and the comparison.
        force: continue where nothing can be gained, or where `ncclt doctor` finds errors.
        hidden: show no progress.
        as_json: print one document.
        store: of all results, once it is open.
        storage: the option that other commands need to find the store; empty where they need none.
        result: of the study; None = none was made.
        verification: of the step times; None = they were not compared.
    """

    argv: tuple[str, ...]
    name: str
    window: int | None
    target: Target
    budget: Budget
    how: Comparison
    force: bool
    hidden: bool
    as_json: bool
    is_recorded: bool = field(init=False)
    store: Store = field(init=False)
    storage: str = ""
    result: TuneResult | None = None
    verification: Verification | None = None

    def start(self, storage: str | None, *, dry_run: bool) -> None:
        """Go through the stages, or print them.

        Raises:
            UsageError, NotFoundError: the trials would refuse a request; raised before the job is launched.
            Exit: a stage was interrupted.
        """
        self.target.require_known_names()
        self.is_recorded = not self.name
        if self.name:
            with open_to_read(storage, would_be_made=True) as store:
                store.workloads.get(self.name)  # an unknown name fails before a missing launcher or GPU
        self.target = choose_target(self.target, self.argv, environ=os.environ)
        self.name = self.name or build_job_name(self.argv, environ=os.environ, folder=Path.cwd())
        path = locate(storage).path
        with open_to_read(storage, would_be_made=True) if dry_run else open_store(storage) as self.store:
            self.storage = storage_option(storage, str(path or self.store.shown))
            if dry_run:
                self._print_plan()
                return
            self.store.require_writable()
            cluster = choose_cluster(self.target, self.store.clusters.get)
            if self.target.is_launched:
                launched_testbed(cluster, frozenset({Collective.ALL_REDUCE}), self.target, environ=os.environ)
            self._run()

    def _list_commands(self, cluster: Cluster | None) -> dict[str, str]:
        """Return the command of each stage, in order; without a cluster, those before it is known."""
        own = shlex.split(self.storage)
        launches = words_of(replace(self.how, min_effect=Comparison().min_effect))
        compared = [*launches, *_words_of_fields(self.budget, "min_effect")]
        recorded = [f"--warmup={self.how.warmup}", *_words_of_fields(self.how, "directory"), "--stop-after"]
        recorded += [f"--steps={self.window}"] if self.window else []
        of = ["--model", self.name, *own]
        if cluster is not None:
            measured = Target(
                cluster=cluster.name,
                nodes=cluster.nodes,
                gpus_per_node=cluster.gpus_per_node,
                nccl_version=cluster.nccl_version,
            )
            of[2:2] = words_of(measured)
        forced = ["--force"] if self.force else []
        words = {
            "record": ["profile", "record", "--name", self.name, *recorded, *own, "--", *self.argv],
            "look": ["profile", "show", self.name, *own],
            "tune": ["tune", "--model", self.name, *words_of(self.target), *words_of(self.budget), *forced, *own],
            "compare": ["verify", *of, *compared, "--", *self.argv],
            "use": ["run", *of, "--", *self.argv],
        }
        left = {"record"} if not self.is_recorded else set()
        left |= set() if self.argv and self.target.is_launched else {"compare", "use"}
        return {name: shlex.join(["ncclt", *line]) for name, line in words.items() if name not in left}

    def _run(self) -> None:
        """Go through the stages, and print the one verdict at the end."""
        workload = self._find_stored()
        if workload is None:
            workload = self._record()
        elif self.is_recorded and not self.hidden:
            say(f"ncclt: record: using the recording {self.name} (record again: `ncclt profile record --replace`)")
        if not self.as_json:
            print_profile(workload)
            print(describe_ceiling(workload))
        if why := explain_low_ceiling(workload, min_effect=self.budget.min_effect):
            if not self.force:
                self._show_end(workload, "keep-default", f"nothing to gain: {why} (--force tunes anyway)")
                return
            say(f"ncclt: --force: {why}")
        testbed = self._open_testbed(workload, ask=True)
        commands = self._list_commands(testbed.runner.cluster)
        self._announce("tune", commands)
        request = TuneRequest(workload=workload, budget=self.budget)
        result, exit_code = run_study(request, testbed, self.store, force=self.force, hidden=self.hidden)
        if not self.as_json:
            shown, again = replace(result, source=self.storage), commands["tune"]
            print_result(shown, self.store, again=again, steps_per_day=None, quiet=self.hidden, verbose=False)
        recommendation = result.recommendation
        if recommendation is None:
            # Interrupted, or another worker of the same study does the rest; both were said.
            raise typer.Exit(0 if result.left else exit_code)
        self.result = result
        if why := explain_no_comparison(recommendation, self.argv):
            verdict = recommendation.table.verdict
            self._show_end(workload, verdict.decision.value, verdict.reason, why=why)
            return
        self._announce("compare", commands)
        self.verification = verification = self._compare(recommendation)
        use = commands["use"] if verification.word == "tuned" else ""
        self._show_end(workload, verification.word, verification.verdict.reason, use=use)

    def _print_plan(self) -> None:
        """Print the stages with their commands and stored results."""
        workload, cluster = self._find_stored(), None
        states = dict.fromkeys(self._list_commands(None), "to do")
        if workload is None:
            states["tune"] = "after the recording"
            if self.target.is_launched:
                cluster = choose_cluster(self.target, self.store.clusters.get)
                cluster = on_cpus(cluster) if self.target.is_gloo else cluster
            elif self.target.cluster is not None:
                self.store.clusters.get(self.target.cluster)  # a mistyped one is refused before anything is recorded
        else:
            testbed = self._open_testbed(workload, ask=False)
            cluster, study = testbed.runner.cluster, self._describe_study(testbed, workload)
            states |= {"record": "stored", "look": describe_ceiling(workload), "tune": study}
        states |= {"compare": "if a gain is validated", "use": "if steps are faster"}
        commands = self._list_commands(cluster)
        stages = [{"stage": name, "state": states[name], "command": line} for name, line in commands.items()]
        if self.as_json:
            print_json({"schema": AUTOTUNE_SCHEMA, "model": self.name, "stages": stages})
            return
        for number, stage in enumerate(stages, start=1):
            print(f"{number} {stage['stage']} ({stage['state']}):\n  {stage['command']}")
        if not self.target.is_launched:
            print("Step times are not compared: --launcher replay and simulate cannot run a job")

    def _announce(self, stage: str, commands: dict[str, str]) -> None:
        if not self.hidden and stage in commands:
            say(f"ncclt: {stage}: {commands[stage]}")

    def _find_stored(self) -> Workload | None:
        """Return the stored workload; None where this run has yet to record it."""
        try:
            workload = self.store.workloads.get(self.name)
        except NotFoundError:
            if not self.is_recorded:
                raise
            return None
        return workload

    def _record(self) -> Workload:
        """Record the job and store its workload."""
        launcher = LocalLauncher(keep_env=split_variables(os.environ).of_job, keep_bytes=KEEP_BYTES)
        self._announce("record", self._list_commands(None))
        with interruptible():
            try:
                recording = record_job(
                    self.argv, name=self.name, steps=self.window, how=self.how, launcher=launcher, environ=os.environ
                )
            except KeyboardInterrupt:
                say("ncclt: interrupted: the job was ended, nothing is stored yet; the same command starts again")
                raise typer.Exit(EXIT_INTERRUPTED) from None
        assert recording.workload is not None
        for failure in recording.failures:
            say(f"ncclt: recording failed in some ranks, the job continued: {failure}")
        self.store.workloads.add(recording.workload, replace=False)
        return recording.workload

    def _open_testbed(self, workload: Workload, *, ask: bool) -> Testbed:
        find_cluster, seed = self.store.clusters.get, self.budget.seed
        return open_testbed(self.target, find_cluster, workload, environ=os.environ, seed=seed, ask=ask)

    def _describe_study(self, testbed: Testbed, workload: Workload) -> str:
        """Return the state of the study, as it is stored."""
        request, (placed, _notes) = TuneRequest(workload=workload, budget=self.budget), testbed.cut(workload)
        try:
            return f"stored: {self.store.studies.get(build_study(request, testbed, placed).id).state}"
        except NotFoundError:
            return "to do"

    def _compare(self, recommendation: Recommendation) -> Verification:
        """Return the comparison of the job's step times, the stored one if it was made before."""
        own = split_variables(os.environ)
        launcher = LocalLauncher(keep_env=own.of_trials, keep_bytes=KEEP_BYTES)
        stored = find_last_comparison(
            self.store, recommendation, self.argv, self.how, base_env=own.tuning, environ=os.environ
        )
        if stored is not None and not can_resume(stored, self.how):
            if not self.hidden:
                when = stored.created
                say(f"ncclt: compare: showing the step times of {when}; `ncclt verify` compares again")
            return stored
        with prepare_comparison(
            recommendation, self.argv, how=self.how, launcher=launcher, environ=os.environ
        ) as request:
            return compare(request, launcher, self.store, hidden=self.hidden)

    def _show_end(self, workload: Workload, decision: str, reason: str, *, use: str = "", why: str = "") -> None:
        """Print the last verdict and how to use it, or everything as one document.

        Args:
            decision, reason: the verdict; that of the study was printed with its result.
            use: the command that uses the result; empty = there is nothing to use, or the study's result says how.
            why: why step times were not compared; empty = they were, or no study was made.
        """
        verification = self.verification
        if self.as_json:
            bound = bound_gain(workload)
            print_json(
                {
                    "schema": AUTOTUNE_SCHEMA,
                    "argv": list(self.argv),
                    "model": self.name,
                    "exposed_share": bound.share if bound else None,
                    "verdict": decision,
                    "reason": reason,
                    "not_compared": why or None,
                    "use": use or None,
                    "tune": build_result_document(self.result, steps_per_day=None) if self.result else None,
                    "verification": verification,
                }
            )
            return
        print()
        if verification is None:
            print(why or f"verdict: {decision}: {reason}")
            return
        print_verification(verification, self.store.shown, quiet=False)
        if use:
            print_headline(f"Use:      {use}")
        else:
            undecided = verification.verdict.decision is Decision.UNDECIDED
            doubt = "step times are inconclusive" if undecided else "messages are faster, steps are not"
            print(f"Use:      nothing for this job: {doubt} (`ncclt env` and `ncclt run` still deliver the result)")

"""What everything but the measuring costs per trial, beside Optuna's own loop with the same sampler and storage.

    python bench/overhead.py [--trials 100] [--model bert] [--json]

A study of `--trials` launches on SQLite; the time inside the runner is taken out, so what is left is ours: asking
the sampler, storing the trial, telling Optuna, assembling the best policy so far. The peer asks GPSampler over the
same space and tells it the same kind of value, on the same kind of SQLite file, and keeps no measurements.
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from ncclt.core.budget import Budget
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.core.trial import Runner, TrialResult
from ncclt.measure.testbed import Testbed, simulated_testbed
from ncclt.pipeline.tune import TuneRequest, build_study
from ncclt.search.loop import Progress, Search
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.space import build_space
from ncclt.store import open_store
from ncclt.store.journal import StudyTrialLog
from ncclt.store.shipped import profiles_folder, shipped_workloads
from output import Rows, build_parser

TARGET_MS = 150.0


class TimedRunner:
    """Passes everything on and counts the seconds spent measuring."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.seconds = 0.0
        self.name, self.simulated, self.cluster = runner.name, runner.simulated, runner.cluster

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        started = time.perf_counter()
        try:
            return self._runner.measure(setting, messages, repeat=repeat)
        finally:
            self.seconds += time.perf_counter() - started


def ours(folder: Path, model: str, trials: int) -> dict[str, Any]:
    with open_store(f"sqlite:///{folder / 'ours.db'}") as store:
        cluster: Cluster = store.clusters.get("leonardo")
        testbed: Testbed = simulated_testbed(cluster, seed=1, reason="bench")
        runner = TimedRunner(testbed.runner)
        request = TuneRequest(workload=store.workloads.get(model), budget=Budget(trials=trials, patience=0, seed=1))
        workload, _ = testbed.cut(request.workload)
        study = store.studies.open(build_study(request, testbed, workload))
        marks: list[float] = []

        def watch(_progress: Progress) -> None:
            marks.append(time.perf_counter() - runner.seconds)

        started = time.perf_counter()
        space = build_space(testbed, workload, study.process_wide)
        with (
            StudyTrialLog(store, study, lambda: "") as trial_log,
            OptunaStudy(space, study, storage_url=store.optuna_url) as optuna_study,
        ):
            Search(
                workload=workload,
                trial_log=trial_log,
                optuna_study=optuna_study,
                budget=request.budget,
                clock=time.monotonic,
                interrupted=lambda: "",
                watch=watch,
            ).run([runner], only_worker=True)
        total = time.perf_counter() - started - runner.seconds
    last = (marks[-1] - marks[-21]) / 20
    return row("ncclt tune", trials, total, last)


def peer(folder: Path, model: str, trials: int) -> dict[str, Any]:
    with open_store(f"sqlite:///{folder / 'ours.db'}") as store:
        testbed = simulated_testbed(store.clusters.get("leonardo"), seed=1, reason="bench")
        workload, _ = testbed.cut(store.workloads.get(model))
    space = build_space(testbed, workload, ())
    messages = [calls.message for calls in workload.messages]
    measuring = 0.0
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / 'peer.db'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(storage=storage, sampler=optuna.samplers.GPSampler(seed=1, n_startup_trials=6))
    marks: list[float] = []
    started = time.perf_counter()
    for _ in range(trials):
        asked = study.ask(dict(space.distributions))
        before = time.perf_counter()
        result = testbed.runner.measure(space.setting(asked.params), messages, repeat=0)
        measuring += time.perf_counter() - before
        study.tell(asked, math.log(sum(m.time_us for m in result.measurements)))
        marks.append(time.perf_counter() - measuring)
    total = time.perf_counter() - started - measuring
    storage.remove_session()
    return row("optuna ask/tell, GPSampler (peer)", trials, total, (marks[-1] - marks[-21]) / 20)


def row(case: str, trials: int, seconds: float, last_s: float) -> dict[str, Any]:
    return {
        "case": case,
        "trials": trials,
        "ms_per_trial": round(seconds / trials * 1e3, 1),
        "ms_per_trial_last_20": round(last_s * 1e3, 1),
    }


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--trials", type=int, default=100, help="at least 21")
    parser.add_argument("--model", default="bert")
    arguments = parser.parse_args()
    if arguments.trials < 21:
        parser.error("--trials must be at least 21, for the last 20 are shown apart")
    if arguments.model not in shipped_workloads(profiles_folder()):
        parser.error(f"no shipped workload {arguments.model!r}")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        # Importing torch takes two seconds once a process; the throw-away study pays for it before anything counts.
        throw_away = Path(folder) / "warm-up"
        throw_away.mkdir()
        ours(throw_away, arguments.model, 21)
        measured = [
            ours(Path(folder), arguments.model, arguments.trials),
            peer(Path(folder), arguments.model, arguments.trials),
        ]
    rows = Rows(as_json=arguments.json)
    for case in measured:
        rows.add(case | {"ratio_to_peer": round(case["ms_per_trial"] / measured[-1]["ms_per_trial"], 2)})
    rows.end(f"target: everything that is not measuring at most {TARGET_MS:.0f} ms a trial at 100 trials")


if __name__ == "__main__":
    main()

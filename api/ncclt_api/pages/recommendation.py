"""Delivery of a revision to jobs, its use in every format, and the actions that its state allows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import RevisionState, RevisionStatus
from ncclt.core.rollout import OPEN_STATES, RollOut
from ncclt.deliver.render.delivery import deliver_table, deliver_variables, job_options
from ncclt.deliver.render.formats import FORMATS, TABLE_FORMATS, render
from ncclt.errors import NccltError, NotFoundError
from ncclt.store.store import Store
from ncclt_api.pages.overview import is_for_other_version
from ncclt_api.pages.rollouts import Holds

_FOR: dict[str, tuple[str, str]] = {
    "export": ("sh, bash, zsh", 'eval "$(ncclt env {job})"'),
    "dotenv": ("docker run --env-file, compose", "ncclt env {job} --format dotenv > nccl.env"),
    "json": ("programs", "ncclt env {job} --format json"),
    "nccl-conf": ("NCCL itself: NCCL_CONF_FILE, ~/.nccl.conf", "ncclt env {job} --format nccl-conf > nccl.conf"),
    "tuner-csv": ("ncclt's tuner plugin", "ncclt env {job} --format tuner-csv > table.csv"),
    "nvidia-csv": ("the NVIDIA example plugin", "ncclt env {job} --format nvidia-csv > table.csv"),
    "rccl-csv": ("RCCL's tuner plugin", "ncclt env {job} --format rccl-csv > table.csv"),
    "ncclx": ("NCCLX", "ncclt env {job} --format ncclx"),
    "slurm-taskprolog": ("srun --task-prolog", "ncclt env {job} --format slurm-taskprolog --output prolog.sh"),
    "pyxis": ("srun with containers", 'eval "$(ncclt env {job} --format pyxis)" && srun $NCCLT_PYXIS'),
    "mpirun-x": ("Open MPI", "mpirun $(ncclt env {job} --format mpirun-x)"),
    "docker-env": ("docker run, podman run", "docker run $(ncclt env {job} --format docker-env)"),
    "configmap": ("Kubernetes", "ncclt env {job} --format configmap | kubectl apply -f -"),
    "trainjob-env": ("Kubeflow TrainJob", "ncclt env {job} --format trainjob-env"),
    "cloudai": ("CloudAI", "ncclt env {job} --format cloudai >> test.toml"),
    "pg-options": ("new_group of PyTorch", "ncclt env {job} --format pg-options > tp_options.py"),
    "megatron-yaml": ("Megatron-LM, group tp", "ncclt env {job} --format megatron-yaml --group tp >> nccl.yaml"),
}
"""Format -> its reader, and the command that fetches it."""

_ACTIONS: dict[str, tuple[str, str]] = {
    "approve": ("Approve", "Serve it as the rules of the cluster require, or to a share of the jobs."),
    "promote": ("Approve", "It won its roll-out: serve it to all jobs."),
    "activate": ("Activate", "Serve it to all jobs now. Open roll-outs for the same jobs end."),
    "rollback": ("Roll back", "Make this revision active again. Open roll-outs for the same jobs end."),
    "pin": ("Pin", "Keep serving this revision, whatever is published later. Open roll-outs for the same jobs end."),
    "unpin": ("Unpin", "Let later revisions replace it again."),
    "stale": ("Mark stale", "Stop serving it until ncclt recheck confirms it."),
    "retire": ("Retire", "Stop serving it; jobs return to their own settings. A roll-out against it ends."),
}
"""Last part of a form's address -> its button and its effect; `promote` approves a winner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Format that can express a revision.

    Attributes:
        format: as `ncclt env --format` names it.
        reader: program that reads it.
        command: to type.
        text: its output.
    """

    format: str
    reader: str
    command: str
    text: str

    @property
    def option(self) -> tuple[str, str]:
        """Return value and text of its entry in a list."""
        return self.format, f"{self.format}: {self.reader}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionNotice:
    """Notice of a revision that not all jobs get.

    Attributes:
        label, sentence: the state, and what jobs get today.
        rollout: id of its open roll-out; empty = none.
        badge: text that replaces its verdict; empty = the verdict is still one for jobs of its cluster.
    """

    label: str
    sentence: str
    rollout: str = ""
    badge: str = ""


def find_served(store: Store, mine: Recommendation) -> Recommendation | None:
    """Return the revision that jobs of the same shape get; None = none."""
    newest = store.recommendations.newest(cluster=mine.cluster, model=mine.model)
    return next((one for one in newest if one.fingerprint == mine.fingerprint and one.origin is mine.origin), None)


def describe_delivery(store: Store, found: Recommendation, served: Recommendation | None) -> RevisionNotice | None:
    """Return the notice of a revision that not all jobs get; None = all get it, or one of another study.

    Args:
        store: of the revision.
        found: the revision.
        served: as of `find_served`.
    """
    open_ones = store.revisions.rollouts(cluster=found.cluster, model=found.model, state=OPEN_STATES)
    mine = [one for one in open_ones if found.id in (one.control, *(arm.recommendation for arm in one.arms))]
    holds = Holds.read(store, mine)
    other = served if served and served.id != found.id else None
    others = f"get revision {other.revision}" if other else "keep their own settings"
    if found.cluster in holds.switched_off:
        return RevisionNotice(
            label="Delivery is off.", sentence=f"All jobs on {found.cluster} keep their own settings until it is on."
        )
    if mine:
        return _describe_roll_out(mine[0], found, holds, others)
    if other and other.stale:
        active = f"revision {other.revision}, the active one,"
        sentence = f"No job gets it: {active} is stale; `ncclt recheck` or `ncclt tune` renews that."
        return RevisionNotice(label="Not active.", sentence=sentence)
    if served is None or (other and other.study == found.study):
        return RevisionNotice(label="Not active.", sentence=f"Jobs {others}.")
    return None if other else _describe_other_version(store, found)


def _describe_roll_out(one: RollOut, found: Recommendation, holds: Holds, others: str) -> RevisionNotice:
    """Return the notice of a revision that is an arm or the control of an open roll-out."""
    held, is_control = holds.explain(one), one.control == found.id
    share = holds.percent(one, "" if is_control else found.id)
    if is_control and found.stale:
        sentence = f"No job that starts gets it: {held}."
    elif is_control:
        sentence = f"{share:.3g} % of the jobs that start get a candidate; the others get this revision."
    elif share:
        sentence = f"{share:.3g} % of the jobs that start get it; the others {others}."
    elif held:
        sentence = f"No job that starts gets it: {held}."
    else:
        sentence = f"It is paused: all jobs that start {others}."
    return RevisionNotice(label="In a roll-out.", sentence=sentence, rollout=one.id)


def _describe_other_version(store: Store, found: Recommendation) -> RevisionNotice | None:
    """Return the notice of a gain for another NCCL version than that of the cluster in the catalogue."""
    try:
        installed = str(store.clusters.get(found.cluster).version)
    except NotFoundError:
        return None
    if not is_for_other_version(found, installed):
        return None
    tuned_for = found.fingerprint.nccl_version
    sentence = (
        f"Tuned with NCCL {tuned_for}; jobs with NCCL {installed}, that of the cluster, do not get it."
        " `ncclt upgrade` says what to tune again."
    )
    return RevisionNotice(label="For another NCCL version.", sentence=sentence, badge=f"for NCCL {tuned_for}")


def list_snippets(found: Recommendation, *, source: str) -> tuple[Snippet, ...]:
    """Return the formats that can express a revision; the others would set nothing.

    Args:
        found: the revision.
        source: options of the commands that name its store or server, with a space before each.
    """
    job = job_options(found, source=source)
    snippets = []
    for format in FORMATS:
        reader, command = _FOR[format]
        with suppress(NccltError):  # it cannot express the policy
            if _carries(found, format):
                text = render(found, format=format, group="tp" if format == "megatron-yaml" else "")
                snippets.append(Snippet(format=format, reader=reader, command=command.replace("{job}", job), text=text))
    return tuple(snippets)


def list_actions(
    status: RevisionStatus, rollout: RollOut | None, *, is_untried: bool = False
) -> dict[str, tuple[str, str]]:
    """Return the actions that the state of a revision allows, with button and effect.

    Args:
        status: of the revision.
        rollout: open one with it as an arm; None = none.
        is_untried: it has no evidence, so only a share of the jobs may try it.
    """
    if rollout is not None and status.id == rollout.winner:
        return {"approve": _ACTIONS["promote"], "retire": _ACTIONS["retire"]}
    verbs = {
        RevisionState.CANDIDATE: ("approve", "retire") if is_untried else ("approve", "activate", "retire"),
        RevisionState.ACTIVE: ("unpin", "stale") if status.pinned else ("pin", "stale", "retire"),
        RevisionState.STALE: ("unpin",) if status.pinned else ("retire",),
        RevisionState.RETIRED: ("rollback",),
    }[status.state]
    return {verb: _ACTIONS[verb] for verb in verbs if verb != "approve" or rollout is None}


def _carries(found: Recommendation, format: str) -> bool:
    """Return True if a format sets anything."""
    if format in TABLE_FORMATS:
        return bool(deliver_table(found).rules)
    if format == "json":  # has both
        return any(one is not None and not one.effective.is_default for one in (found.table, found.variables))
    return bool(deliver_variables(found).variables)

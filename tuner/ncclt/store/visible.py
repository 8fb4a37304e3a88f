"""A store as the holder of a key sees it: only some clusters, and what belongs to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from ncclt.core.attestation import Attestation
from ncclt.core.cluster import Cluster
from ncclt.core.preflight import Preflight
from ncclt.core.recheck import Recheck
from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import Actor, ClusterRules, HistoryEvent, RevisionStatus
from ncclt.core.rollout import JobDecision, JobStart, JobTime, RollOut, RollOutState
from ncclt.core.study import Study, Trial
from ncclt.core.ticket import Reporter, Ticket
from ncclt.core.verification import Verification
from ncclt.core.workload import Workload
from ncclt.store.lives import MOST_LISTED
from ncclt.store.names import unknown_name, unknown_recommendation, unknown_rollout
from ncclt.store.overview import Era, Hit, Pair
from ncclt.store.shipped import CatalogueEntry
from ncclt.store.store import Store
from ncclt.store.study_page import StudyEntry, StudyPage
from ncclt.store.tables import Names
from ncclt.store.trial_list import Order, TrialFilter, TrialPart


class VisibleStore(Store):
    """A store bound to some clusters.

    Lists leave out other clusters, and an object of another cluster is not found, as if it did not exist. A method of
    `Store` that is not repeated here knows no scope: it fails, since nothing of the store but the methods below can
    reach the database.

    Args:
        store: that everything is read from and written to.
        clusters: names; empty = all.
    """

    def __init__(self, store: Store, clusters: Collection[str] = ()) -> None:
        self._store = store
        self._seen = frozenset(clusters)

    def __repr__(self) -> str:
        return f"VisibleStore({self._store!r}, {sorted(self._seen)})"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r}: this method of the store knows no scope")

    def close(self) -> None:
        """Leave the store open: it is its owner's."""

    def is_visible(self, cluster: str) -> bool:
        """Return whether a cluster may be seen."""
        return not self._seen or cluster in self._seen

    def _within(self, cluster: Names) -> Names:
        """Return those of the named clusters that may be seen, as the argument of a query."""
        if not self._seen or cluster is None:
            return cluster if not self._seen else self._seen
        return self._seen & ({cluster} if isinstance(cluster, str) else set(cluster))

    def _require_study(self, id: str) -> None:
        if self._seen:
            self.study(id)

    # --- catalogue ---

    def workloads(self) -> tuple[CatalogueEntry[Workload], ...]:
        """Return every workload: they belong to no cluster."""
        return self._store.workloads()

    def workload(self, name: str) -> Workload:
        """Return a workload, likewise."""
        return self._store.workload(name)

    def add_workload(self, workload: Workload, *, replace: bool = False) -> None:
        """Store a workload, likewise."""
        self._store.add_workload(workload, replace=replace)

    def clusters(self) -> tuple[CatalogueEntry[Cluster], ...]:
        """Return the clusters that may be seen."""
        return tuple(entry for entry in self._store.clusters() if self.is_visible(entry.item.name))

    def cluster(self, name: str) -> Cluster:
        """Return a cluster that may be seen; the hint for an unknown name gives no other one."""
        if not self.is_visible(name):
            raise unknown_name("cluster", name, self._seen)
        if not self._seen:
            return self._store.cluster(name)
        for entry in self.clusters():
            if entry.item.name == name:
                return entry.item
        raise unknown_name("cluster", name, self._seen)

    # --- studies ---

    def study(self, key: str, *, cluster: Names = None) -> Study:
        """Return a study; neither an ambiguous prefix nor a hint shows one of another cluster."""
        return self._store.study(key, cluster=self._within(cluster))

    def studies(
        self, *, limit: int = 50, cursor: str | None = None, cluster: Names = None, model: str | None = None
    ) -> StudyPage:
        """Return a page of studies."""
        return self._store.studies(limit=limit, cursor=cursor, cluster=self._within(cluster), model=model)

    def running_studies(self, *, cluster: Names = None, model: str | None = None) -> tuple[StudyEntry, ...]:
        """Return the running studies."""
        return self._store.running_studies(cluster=self._within(cluster), model=model)

    def recent_studies(self, *, limit: int, cluster: Names = None, model: str | None = None) -> tuple[StudyEntry, ...]:
        """Return the newest studies that are not running."""
        return self._store.recent_studies(limit=limit, cluster=self._within(cluster), model=model)

    def trials(self, study_id: str) -> tuple[Trial, ...]:
        """Return the trials of a study."""
        self._require_study(study_id)
        return self._store.trials(study_id)

    def trial_page(self, study_id: str, *, after: int = -1, limit: int) -> tuple[Trial, ...]:
        """Return the next trials of a study."""
        self._require_study(study_id)
        return self._store.trial_page(study_id, after=after, limit=limit)

    def trial_list(
        self, study_id: str, only: TrialFilter, *, order: Order = "number", skip: int = 0, limit: int
    ) -> TrialPart:
        """Return the trials of a study that a filter lets through."""
        self._require_study(study_id)
        return self._store.trial_list(study_id, only, order=order, skip=skip, limit=limit)

    def trial_outline(self, study_id: str) -> tuple[Trial, ...]:
        """Return the trials of a study without their measurements."""
        self._require_study(study_id)
        return self._store.trial_outline(study_id)

    def measured(self, study_id: str, wanted: Collection[Trial]) -> tuple[Trial, ...]:
        """Return trials of a study with their measurements."""
        self._require_study(study_id)
        return self._store.measured(study_id, wanted)

    def trial(self, study_id: str, number: int) -> Trial:
        """Return one trial of a study."""
        self._require_study(study_id)
        return self._store.trial(study_id, number)

    def repeats(self, study_id: str, trial: Trial, *, limit: int) -> tuple[Trial, ...]:
        """Return the other trials of a study that measured the same setting."""
        self._require_study(study_id)
        return self._store.repeats(study_id, trial, limit=limit)

    # --- recommendations ---

    def recommendation(self, id: str) -> Recommendation:
        """Return one published revision."""
        found = self._store.recommendation(id)
        if not self.is_visible(found.cluster):
            raise unknown_recommendation(id)
        return found

    def recommendations(
        self, *, cluster: Names = None, model: str | None = None, study: str | None = None
    ) -> tuple[Recommendation, ...]:
        """Return published revisions."""
        return self._store.recommendations(cluster=self._within(cluster), model=model, study=study)

    def newest(self, *, cluster: str, model: str) -> tuple[Recommendation, ...]:
        """Return what jobs of a pair can be given."""
        return self._store.newest(cluster=cluster, model=model) if self.is_visible(cluster) else ()

    def newest_each(self, *, cluster: Names = None, model: str | None = None) -> tuple[Recommendation, ...]:
        """Return the newest revision of each pair, fingerprint and origin."""
        return self._store.newest_each(cluster=self._within(cluster), model=model)

    def stale_recommendations(self, *, cluster: Names = None) -> tuple[Recommendation, ...]:
        """Return the active revisions that are stale."""
        return self._store.stale_recommendations(cluster=self._within(cluster))

    def pairs(self, *, cluster: Names = None, model: str | None = None) -> tuple[Pair, ...]:
        """Return the pairs of cluster and workload."""
        return self._store.pairs(cluster=self._within(cluster), model=model)

    def recommended_before(
        self, created: str, *, cluster: Names = None, model: str | None = None
    ) -> dict[tuple[str, str], Recommendation]:
        """Return the recommendation of each pair as it was at a time."""
        return self._store.recommended_before(created, cluster=self._within(cluster), model=model)

    def eras(self, cluster: str) -> tuple[Era, ...]:
        """Return the fingerprints under which something was published for a cluster."""
        return self._store.eras(cluster) if self.is_visible(cluster) else ()

    def find(self, text: str, *, cluster: Names = None) -> tuple[Hit, ...]:
        """Return clusters, workloads and studies by a part of their names."""
        return self._store.find(text, cluster=self._within(cluster))

    # --- lives ---

    def statuses(
        self, *, cluster: Names = None, model: str | None = None, id: str | None = None, limit: int = MOST_LISTED
    ) -> tuple[RevisionStatus, ...]:
        """Return revisions with their states."""
        return self._store.statuses(cluster=self._within(cluster), model=model, id=id, limit=limit)

    def approve(self, id: str, by: Actor, *, percent: int | None = None, loss_limit: float | None = None) -> str:
        """Approve a candidate."""
        return self._store.approve(self.recommendation(id).id, by, percent=percent, loss_limit=loss_limit)

    def activate(self, id: str, by: Actor) -> None:
        """Give a candidate to all jobs."""
        self._store.activate(self.recommendation(id).id, by)

    def roll_back(self, id: str, by: Actor) -> None:
        """Make an earlier revision active again."""
        self._store.roll_back(self.recommendation(id).id, by)

    def pin(self, id: str, by: Actor) -> None:
        """Give jobs a revision, whatever is published later."""
        self._store.pin(self.recommendation(id).id, by)

    def unpin(self, id: str, by: Actor) -> None:
        """Let later revisions replace one again."""
        self._store.unpin(self.recommendation(id).id, by)

    def retire(self, id: str, by: Actor) -> None:
        """Give a revision to no job any more."""
        self._store.retire(self.recommendation(id).id, by)

    def rules(self, cluster: str) -> ClusterRules:
        """Return what a cluster requires."""
        self._require_visible(cluster)
        return self._store.rules(cluster)

    def set_rules(self, rules: ClusterRules, by: Actor) -> None:
        """Store what a cluster requires."""
        self._require_visible(rules.cluster)
        self._store.set_rules(rules, by)

    def _require_visible(self, cluster: str) -> None:
        if not self.is_visible(cluster):
            raise unknown_name("cluster", cluster, self._seen)

    def history(
        self,
        *,
        cluster: Names = None,
        recommendation: str | None = None,
        before: int | None = None,
        limit: int = MOST_LISTED,
    ) -> tuple[HistoryEvent, ...]:
        """Return entries of the history."""
        within = self._within(cluster)
        return self._store.history(cluster=within, recommendation=recommendation, before=before, limit=limit)

    def served_rollouts(self, *, cluster: str, model: str) -> tuple[tuple[RollOut, Recommendation], ...]:
        """Return the running roll-outs of a pair."""
        return self._store.served_rollouts(cluster=cluster, model=model) if self.is_visible(cluster) else ()

    def rollout(self, id: str) -> RollOut:
        """Return a roll-out."""
        found = self._store.rollout(id)
        if not self.is_visible(found.cluster):
            raise unknown_rollout(id)
        return found

    def rollouts(
        self, *, cluster: Names = None, recommendation: str | None = None, limit: int = MOST_LISTED
    ) -> tuple[RollOut, ...]:
        """Return roll-outs."""
        return self._store.rollouts(cluster=self._within(cluster), recommendation=recommendation, limit=limit)

    def add_job_time(self, time: JobTime) -> bool:
        """Store the step time of a job."""
        self.rollout(time.rollout)
        return self._store.add_job_time(time)

    def job_times(self, rollout: str) -> tuple[JobTime, ...]:
        """Return the step times of a roll-out's jobs."""
        return self._store.job_times(self.rollout(rollout).id)

    def add_job_starts(self, starts: Sequence[JobStart]) -> None:
        """Store the starts of jobs."""
        for rollout in {start.rollout for start in starts}:
            self.rollout(rollout)
        self._store.add_job_starts(starts)

    def job_starts(self, rollout: str) -> tuple[JobStart, ...]:
        """Return the jobs of a roll-out that got a ticket."""
        return self._store.job_starts(self.rollout(rollout).id)

    def keep_job_decision(self, decision: JobDecision) -> JobDecision:
        """Keep the answer for a job unless one is kept already, and return the kept one."""
        self._require_visible(decision.cluster)
        return self._store.keep_job_decision(decision)

    def ticket_secret(self) -> str:
        """Return the secret that tickets are signed with: it belongs to no cluster."""
        return self._store.ticket_secret()

    def end_rollout(self, id: str, state: RollOutState, reason: str, by: Actor) -> bool:
        """End a roll-out."""
        return self._store.end_rollout(self.rollout(id).id, state, reason, by)

    # --- records ---

    def rechecks(self, recommendation: str) -> tuple[Recheck, ...]:
        """Return the rechecks of a recommendation."""
        return self._store.rechecks(self.recommendation(recommendation).id)

    def add_recheck(self, recheck: Recheck, *, by: Actor | None = None) -> None:
        """Store a recheck of a recommendation."""
        self.recommendation(recheck.recommendation)
        self._store.add_recheck(recheck, by=by)

    def attestations(
        self, of: Collection[str], *, cluster: Names = None, limit: int | None = None
    ) -> tuple[Attestation, ...]:
        """Return attestations of some recommendations."""
        return self._store.attestations(of, cluster=self._within(cluster), limit=limit)

    def add_attestation(
        self, attestation: Attestation, *, ticket: Ticket | None = None, reporter: Reporter | None = None
    ) -> bool:
        """Store an attestation of a recommendation."""
        self.recommendation(attestation.recommendation)
        return self._store.add_attestation(attestation, ticket=ticket, reporter=reporter)

    def effects(self, of: Collection[str], *, cluster: Names = None) -> dict[str, str]:
        """Return the word of the newest attestation of each recommendation that has one."""
        return self._store.effects(of, cluster=self._within(cluster))

    def preflights(self, *, cluster: Names = None, limit: int = 20) -> tuple[Preflight, ...]:
        """Return the newest preflights."""
        return self._store.preflights(cluster=self._within(cluster), limit=limit)

    def verifications(
        self,
        *,
        cluster: Names = None,
        model: str | None = None,
        recommendation: str | None = None,
        limit: int | None = None,
    ) -> tuple[Verification, ...]:
        """Return verifications."""
        within = self._within(cluster)
        return self._store.verifications(cluster=within, model=model, recommendation=recommendation, limit=limit)

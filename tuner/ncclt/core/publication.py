"""The comparison of evidence that decides whether a new revision replaces the active one."""

from __future__ import annotations

from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.revision import RevisionState


def describe_publication(
    id: str,
    state: RevisionState,
    *,
    kept: str = "",
    active: Recommendation | None = None,
    replaced: Recommendation | None = None,
) -> str:
    """Describe the change for jobs by a publication, with the command that undoes it; empty = nothing to report.

    Args:
        kept: why its evidence did not replace the active revision; empty where it did, or something else is awaited.
        active: revision that jobs get instead; None = none, or this one.
        replaced: revision that it replaced; None = none.
    """
    command = "ncclt admin recommendations"
    if kept and state is RevisionState.CANDIDATE:
        remains = f" ({_name(active)} remains active)" if active else ""
        return f"Revision {id} is not active: {kept}{remains}; to activate it: `{command} approve {id}`"
    if state is RevisionState.CANDIDATE:
        return f"Revision {id} is a candidate, not yet for all jobs; see `{command} show {id}`"
    if state is RevisionState.RETIRED:
        return f"Revision {id} is no longer active; to restore it: `{command} activate {id}`"
    if replaced is not None:
        undo = f"to restore that one: `{command} activate {replaced.id}`"
        return f"Revision {id} replaces {_name(replaced)}; {undo}"
    return ""


def refuse_replacement(new: Recommendation, active: Recommendation) -> str:
    """Return the reason why a revision does not replace the active one; empty = it replaces it.

    Both are for the same cluster, workload and fingerprint. Only a proof displaces a proof: one of a gain at least as
    large, or of as many blocks that does not contradict it. A keep-default displaces only the policy that it refutes.
    A deterministic study keeps the default without having tried reductions, so it displaces no full search.

    Args:
        active: what jobs get, or, while it is stale, what they got.
    """
    after, before = best_form(new).verdict, best_form(active).verdict
    tried_less = new.deterministic and not active.deterministic and not active.stale
    if tried_less and after.decision is Decision.KEEP_DEFAULT:
        return "its search was deterministic and left reductions untried, that of the active revision was not"
    if before.decision is not Decision.TUNED:
        # The active revision delivers nothing.
        if after.decision is Decision.TUNED or before.decision is Decision.UNDECIDED or active.stale:
            return ""
        if after.decision is Decision.UNDECIDED:
            return "it is undecided, and the active revision found the NCCL default best"
        return _coarser(after, before) if after.min_effect > before.min_effect else ""
    if after.decision is Decision.UNDECIDED:
        return "it is undecided, and the active revision is validated"
    if active.stale:
        return ""  # what was proven under other conditions stands against nothing
    if new.has_step_times is not active.has_step_times:
        return "one verdict is on step times, the other on communication time"
    if after.decision is Decision.KEEP_DEFAULT:
        return _refuse_refutation(new, after, active, before)
    forms = (("variables", new.variables, active.variables), ("table", new.table, active.table))
    if lost := next((name for name, form, was in forms if _is_tuned(was) and not _is_tuned(form)), ""):
        return (
            "" if after.interval[0] > before.interval[1] else f"it proves no gain by {lost}, the active revision does"
        )
    if after.interval[0] >= before.interval[0]:
        return ""
    if after.blocks < before.blocks:
        return (
            f"its gain of at least {after.interval[0]:.3f}x in {_blocks(after)} is weaker evidence than "
            f"{before.interval[0]:.3f}x in {_blocks(before)}"
        )
    if after.interval[1] < before.interval[0] and new.delivered != active.delivered:
        return f"its gain of at most {after.interval[1]:.3f}x is below the {before.interval[0]:.3f}x that is validated"
    return ""


def best_form(recommendation: Recommendation) -> PolicyVerdict:
    """Return the form with the best verdict: a proven one first, and of two the one that gains more."""
    forms = [form for form in (recommendation.table, recommendation.variables) if form is not None]
    return max(forms, key=lambda form: (form.verdict.decision is Decision.TUNED, form.verdict.interval[0]))


def _refuse_refutation(new: Recommendation, after: Verdict, active: Recommendation, before: Verdict) -> str:
    """Compare a keep-default with an active revision that is tuned."""
    if not after.blocks:
        return "it keeps the NCCL default without an A/B test, and the active revision is validated"
    if best_form(new).policy != best_form(active).policy:
        return "its A/B test is of another policy, and the active one is validated"
    if after.min_effect > before.min_effect:
        return _coarser(after, before)
    if after.blocks < before.blocks:
        return f"its proof has {_blocks(after)}, that of the active revision {before.blocks}"
    return ""


def _is_tuned(form: PolicyVerdict | None) -> bool:
    return form is not None and form.verdict.decision is Decision.TUNED


def _coarser(after: Verdict, before: Verdict) -> str:
    return (
        f"it disregards gains below {after.min_effect * 100:g} %, the active revision those below "
        f"{before.min_effect * 100:g} %"
    )


def _blocks(verdict: Verdict) -> str:
    return count_noun(verdict.blocks, "block")


def _name(recommendation: Recommendation) -> str:
    verdict = best_form(recommendation).verdict
    gain = f" {verdict.speedup:.2f}x" if verdict.decision is Decision.TUNED else ""
    stale = ", stale" if recommendation.stale else ""
    return f"{recommendation.id} ({recommendation.verdict_word(verdict)}{gain}{stale})"

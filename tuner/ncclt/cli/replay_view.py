"""What a person sees of a study that was searched again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncclt.core.study import Study
    from ncclt.search.replay import RecordedStudy, Replay

REPLAY_SCHEMA = 1
"""Version of the document that `studies replay --json` prints."""

_AFTER = (5, 8, 12, 20)
_WITHIN = (0.03, 0.01)


def replay_document(study: Study, recording: RecordedStudy, replays: Sequence[Replay]) -> dict[str, Any]:
    """Return regrets and launches of every sampler over its seeds."""
    from ncclt.core.policy import Policy

    samplers = dict.fromkeys(replay.sampler for replay in replays)
    return {
        "schema": REPLAY_SCHEMA,
        "study": study.id,
        "settings": len(recording.results),
        "default_regret": recording.regret(Policy()),
        "best_setting_regret": recording.best_single_regret,
        "samplers": [_row([replay for replay in replays if replay.sampler == name]) for name in samplers],
    }


def _row(replays: Sequence[Replay]) -> dict[str, Any]:
    longest = max(len(replay.regrets) for replay in replays)
    return {
        "sampler": replays[0].sampler,
        "seeds": len(replays),
        "launches": longest,
        # A search that found nothing more to launch keeps what it had.
        "regret": {
            str(after): {
                "mean": statistics.fmean(values),
                "worst": max(values),
            }
            for after in (*(a for a in _AFTER if a < longest), longest)
            for values in [[replay.regrets[min(after, len(replay.regrets)) - 1] for replay in replays]]
        },
        "launches_within": {f"{share:g}": [replay.launches_within(share) for replay in replays] for share in _WITHIN},
    }


def print_replay(document: dict[str, Any]) -> None:
    """Write one line per sampler."""
    from ncclt.cli.tables import print_table

    default, single = (f"{document[name] * 100:.1f} %" for name in ("default_regret", "best_setting_regret"))
    print(f"{document['settings']} settings were measured; over the best policy that they allow,")
    print(f"the default has a regret of {default} and the best single setting one of {single}")
    rows = document["samplers"]
    marks = sorted({int(after) for row in rows for after in row["regret"]})
    titles = [f"after {mark}" for mark in marks]
    print_table(
        ("sampler", "seeds", *titles, *(f"launches to {share * 100:g} %" for share in _WITHIN)),
        [
            (
                row["sampler"],
                str(row["seeds"]),
                *(_regret(row["regret"].get(str(mark))) for mark in marks),
                *(_launches(row["launches_within"][f"{share:g}"]) for share in _WITHIN),
            )
            for row in rows
        ],
        numbers=("seeds", *titles),
        caption="regret: mean (worst) over seeds; launches: mean of the seeds that came to stay within",
    )


def _regret(found: dict[str, float] | None) -> str:
    return "-" if found is None else f"{found['mean'] * 100:.1f} % ({found['worst'] * 100:.1f} %)"


def _launches(found: Sequence[int | None]) -> str:
    reached = [launches for launches in found if launches is not None]
    if not reached:
        return f"never in {len(found)}"
    missing = f", never in {len(found) - len(reached)}" if len(reached) < len(found) else ""
    return f"{statistics.fmean(reached):.1f}{missing}"

"""Compare over the job's store what all ranks have loaded, and let all use the tuner table or none.

Each rank writes its facts under a key of its own. Rank 0 compares them and writes the decision into a register that can
be written once (`compare_set`), and every rank acts on what it holds. A rank that gets no decision in time writes "keep
the default" itself, and takes what the register then holds. Only a rank that offered to use the table and then
lost the store cannot know: its plugin fails every later call, since a guess may hang the job or corrupt its data.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import time
from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any

TIMEOUT_S = 60.0
"""Limit for which rank 0 waits; ranks meet in their first collective anyway, so only a rank without hook costs it."""

USE_TABLE, KEEP_DEFAULT, IN_DOUBT = 1, 2, 3
"""As enum ncclt_agreed of plugin/agreement.h."""

_USE = "use"
COMMON = (("plugin", "plugin"), ("nccl", "NCCL"))
"""Facts that are equal on all ranks whenever a plugin of theirs chooses, and the words for them."""

_COMPARED = (*COMMON, ("table", "table"))
_ROOM = 2048


def wrap(distributed: ModuleType, begin: Callable[[Any, int], object] | None = None) -> None:
    """Let `init_process_group` of torch.distributed end with `begin`; None = the agreement of all ranks.

    Args:
        distributed: torch.distributed.distributed_c10d.
        begin: called with it, and with how often it was initialised.
    """
    original = getattr(distributed, "init_process_group", None)
    if original is None:
        return  # a PyTorch without distributed
    inits = 0

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        nonlocal inits
        result = original(*args, **kwargs)
        inits += 1
        (begin or _agree_over)(distributed, inits)
        return result

    distributed.init_process_group = init_process_group  # type: ignore[attr-defined]


def _agree_over(distributed: Any, inits: int) -> None:
    facts, decide = look_around(os.environ)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        store = distributed._get_default_store()
        timeout_s = float(os.environ.get("NCCLT_AGREEMENT_TIMEOUT") or TIMEOUT_S)
    except Exception as error:  # noqa: BLE001  # whatever PyTorch lacks here, this rank offers nothing
        decide(KEEP_DEFAULT)
        say(f"keeping the NCCL default: this rank cannot reach the others' store: {one_line(error)}")
        return
    agree(
        store,
        rank,
        ranks,
        facts=facts,
        decide=decide,
        prefix=f"ncclt/agreement/{restarts}/{inits}",
        timeout_s=timeout_s,
    )


def look_around(environ: Mapping[str, str]) -> tuple[dict[str, str], Callable[[int], object]]:
    """Load the plugin of this rank; return its facts and the function that passes it the decision."""
    library, facts = describe_rank(environ)
    facts.setdefault("table", "")
    if environ.get("NCCLT_AGREEMENT") != "hook":
        facts["problem"] = facts["problem"] or "NCCLT_AGREEMENT is not set"
    elif not facts["problem"] and facts["table_problem"]:
        facts["problem"] = f"its table cannot be used: {facts['table_problem']}"
    return facts, _nobody if library is None else library.ncclt_decide


def describe_rank(environ: Mapping[str, str]) -> tuple[ctypes.CDLL | None, dict[str, str]]:
    """Load the plugin that NCCL loads in this rank, and return it with its facts: `problem` tells why there is none."""
    facts = dict.fromkeys(("plugin", "nccl", "table", "table_problem", "problem"), "")
    facts["host"] = os.uname().nodename
    name = environ.get("NCCL_TUNER_PLUGIN", "")
    if not name:
        facts["problem"] = "no tuner plugin (NCCL_TUNER_PLUGIN is not set)"
        return None, facts
    for path in (name,) if "/" in name else (name, f"libnccl-tuner-{name}.so"):  # as NCCL looks
        try:
            library = ctypes.CDLL(path)
            describe, _ = library.ncclt_describe, library.ncclt_decide
        except (OSError, AttributeError) as error:
            facts["problem"] = f"the tuner plugin cannot be used: {one_line(error)}"
            continue
        text = ctypes.create_string_buffer(_ROOM)
        if describe(text, ctypes.c_size_t(_ROOM)) < 0:
            facts["problem"] = "the tuner plugin does not say what it has loaded"
            return library, facts
        lines = text.value.decode("ascii", "replace").splitlines()
        described = dict(line.split("=", 1) for line in lines if "=" in line)
        facts["plugin"] = f"{described.get('plugin')} ({described.get('image')})"
        facts["nccl"], facts["table"] = described.get("nccl", ""), described.get("table", "")
        facts["table_problem"], facts["problem"] = described.get("problem", ""), ""
        return library, facts
    return None, facts


def agree(
    store: Any,
    rank: int,
    ranks: int,
    *,
    facts: Mapping[str, str],
    decide: Callable[[int], object],
    prefix: str,
    timeout_s: float,
) -> int:
    """Compare the ranks, pass the decision to the plugin, and return it.

    Args:
        store: of the job; used by a clone, since a waiting thread blocks all other users of one.
        rank, ranks: of this process, and of the job.
        facts, decide: of `look_around`.
        prefix: of all keys; another one for every start of the ranks.
        timeout_s: rank 0 waits so long for the others, and they wait a quarter longer for it.
    """
    decision = KEEP_DEFAULT
    try:
        store = store.clone() if hasattr(store, "clone") else store
        store.compare_set(f"{prefix}/probe/{rank}", "", "1")  # fails here where the store has no such operation
        own = json.dumps(dict(facts), sort_keys=True)
        if not facts["problem"]:
            decision = IN_DOUBT  # from here on the others may decide to use the table
        is_stale = text_of(store.compare_set(f"{prefix}/facts/{rank}", "", own)) != own
        if rank == 0:
            proposal = compare_facts(_collect(store, prefix, ranks, timeout_s), ranks, timeout_s, _COMPARED) or _USE
        elif wait_for(store, [f"{prefix}/decision"], timeout_s * 1.25, ranks):
            proposal = ""
        else:
            proposal = f"rank 0 did not decide within {timeout_s * 1.25:g} s, says rank {rank}"
        decided = text_of(
            store.compare_set(f"{prefix}/decision", "", proposal) if proposal else store.get(f"{prefix}/decision")
        )
        if decided != _USE:
            decision = KEEP_DEFAULT
            if decided == proposal:
                say(f"keeping the NCCL default on all {ranks} ranks: {decided}")
        elif not is_stale:
            decision = USE_TABLE
    except Exception as error:  # noqa: BLE001  # of the store, in whatever class PyTorch raises it
        if decision == IN_DOUBT:
            say(f"rank {rank} lost the job's store before it knew whether the ranks use the table: {one_line(error)}")
        elif rank == 0:
            say(f"keeping the NCCL default: the ranks cannot be compared: {one_line(error)}")
    finally:
        decide(decision)
    return decision


def _collect(store: Any, prefix: str, ranks: int, timeout_s: float) -> dict[int, dict[str, str]]:
    keys = [f"{prefix}/facts/{rank}" for rank in range(ranks)]
    everybody = wait_for(store, keys, timeout_s, ranks)
    present = [rank for rank, key in enumerate(keys) if everybody or store.check([key])]
    return {rank: json.loads(store.get(keys[rank])) for rank in present}


def compare_facts(
    facts: Mapping[int, Mapping[str, str]], ranks: int, timeout_s: float, compared: Sequence[tuple[str, str]]
) -> str:
    """Return the problem that keeps the ranks from using a plan, with its first rank; empty = none.

    Args:
        facts: by rank; a rank may be missing.
        ranks: of the job.
        timeout_s: for which the missing ones were waited for.
        compared: names of the facts that must be equal, with the words for them.
    """
    missing = [rank for rank in range(ranks) if rank not in facts]
    if missing:
        return f"rank {missing[0]} did not answer within {timeout_s:g} s{_more(missing)}"
    troubled = [rank for rank in range(ranks) if facts[rank]["problem"]]
    if troubled:
        first = facts[troubled[0]]
        return f"rank {troubled[0]} on {first['host']}: {first['problem']}{_more(troubled)}"
    for name, word in compared:
        usual = Counter(facts[rank][name] for rank in range(ranks)).most_common(1)[0][0]
        odd = [rank for rank in range(ranks) if facts[rank][name] != usual]
        if odd:
            first = facts[odd[0]]
            return f"rank {odd[0]} on {first['host']} has {word} {first[name]} instead of {usual}{_more(odd)}"
    return ""


def _more(concerned: Sequence[int]) -> str:
    return "" if len(concerned) == 1 else f" (and {len(concerned) - 1} more)"


def wait_for(
    store: Any, keys: Sequence[str], timeout_s: float, ranks: int, is_stopped: Callable[[], bool] = lambda: False
) -> bool:
    """Poll until all keys are there: a `wait` that runs into its time limit leaves some stores unusable."""
    ends_s = time.monotonic() + timeout_s
    pause_s = 0.001
    while not store.check(list(keys)):
        if time.monotonic() > ends_s or is_stopped():
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_pause_s(ranks))
    return True


def longest_pause_s(ranks: int) -> float:
    """Return the longest pause between two polls: one thread of the store answers all ranks."""
    return max(0.02, ranks * 0.0005)


def text_of(value: Any) -> str:
    """Return a value of a store as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def one_line(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _nobody(_decision: int) -> None:
    """Stand for the plugin where there is none."""


def say(sentence: str) -> None:
    """Tell the user, where there is a stderr."""
    try:
        print(f"ncclt: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError, AttributeError):
        return  # no stderr

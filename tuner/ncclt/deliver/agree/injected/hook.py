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
_COMPARED = (("plugin", "plugin"), ("nccl", "NCCL"), ("table", "table"))
_ROOM = 2048


def wrap(distributed: ModuleType) -> None:
    """Let `init_process_group` of torch.distributed end with the agreement of all ranks."""
    original = getattr(distributed, "init_process_group", None)
    if original is None:
        return  # a PyTorch without distributed
    inits = 0

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        nonlocal inits
        result = original(*args, **kwargs)
        inits += 1
        _agree_over(distributed, inits)
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
        _say(f"keeping the NCCL default: this rank cannot reach the others' store: {_one_line(error)}")
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
    facts = dict.fromkeys((name for name, _ in _COMPARED), "")
    facts["host"], facts["problem"] = os.uname().nodename, ""
    if environ.get("NCCLT_AGREEMENT") != "hook":
        facts["problem"] = "NCCLT_AGREEMENT is not set"
    library = None
    name = environ.get("NCCL_TUNER_PLUGIN", "")
    if not name:
        facts["problem"] = "no tuner plugin (NCCL_TUNER_PLUGIN is not set)"
        return facts, _nobody
    for path in (name,) if "/" in name else (name, f"libnccl-tuner-{name}.so"):  # as NCCL looks
        try:
            library = ctypes.CDLL(path)
            describe, decide = library.ncclt_describe, library.ncclt_decide
            break
        except (OSError, AttributeError) as error:
            library, facts["problem"] = None, f"the tuner plugin cannot be used: {_one_line(error)}"
    if library is None:
        return facts, _nobody
    text = ctypes.create_string_buffer(_ROOM)
    if describe(text, ctypes.c_size_t(_ROOM)) < 0:
        facts["problem"] = "the tuner plugin does not say what it has loaded"
        return facts, decide
    told = dict(line.split("=", 1) for line in text.value.decode("ascii", "replace").splitlines() if "=" in line)
    facts["plugin"] = f"{told.get('plugin')} ({told.get('image')})"
    facts["nccl"], facts["table"] = told.get("nccl", ""), told.get("table", "")
    if not facts["problem"] and told.get("problem"):
        facts["problem"] = f"its table cannot be used: {told['problem']}"
    return facts, decide


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
        is_stale = _text(store.compare_set(f"{prefix}/facts/{rank}", "", own)) != own
        if rank == 0:
            proposal = _compare(_collect(store, prefix, ranks, timeout_s), ranks, timeout_s)
        elif _wait(store, [f"{prefix}/decision"], timeout_s * 1.25, ranks):
            proposal = ""
        else:
            proposal = f"rank 0 did not decide within {timeout_s * 1.25:g} s, says rank {rank}"
        decided = _text(
            store.compare_set(f"{prefix}/decision", "", proposal) if proposal else store.get(f"{prefix}/decision")
        )
        if decided != _USE:
            decision = KEEP_DEFAULT
            if decided == proposal:
                _say(f"keeping the NCCL default on all {ranks} ranks: {decided}")
        elif not is_stale:
            decision = USE_TABLE
    except Exception as error:  # noqa: BLE001  # of the store, in whatever class PyTorch raises it
        if decision == IN_DOUBT:
            _say(f"rank {rank} lost the job's store before it knew whether the ranks use the table: {_one_line(error)}")
        elif rank == 0:
            _say(f"keeping the NCCL default: the ranks cannot be compared: {_one_line(error)}")
    finally:
        decide(decision)
    return decision


def _collect(store: Any, prefix: str, ranks: int, timeout_s: float) -> dict[int, dict[str, str]]:
    keys = [f"{prefix}/facts/{rank}" for rank in range(ranks)]
    everybody = _wait(store, keys, timeout_s, ranks)
    present = [rank for rank, key in enumerate(keys) if everybody or store.check([key])]
    return {rank: json.loads(store.get(keys[rank])) for rank in present}


def _compare(facts: Mapping[int, Mapping[str, str]], ranks: int, timeout_s: float) -> str:
    """Return `use`, or why all ranks keep the default, with the first rank that is the reason."""
    missing = [rank for rank in range(ranks) if rank not in facts]
    if missing:
        return f"rank {missing[0]} did not answer within {timeout_s:g} s{_more(missing)}"
    troubled = [rank for rank in range(ranks) if facts[rank]["problem"]]
    if troubled:
        first = facts[troubled[0]]
        return f"rank {troubled[0]} on {first['host']}: {first['problem']}{_more(troubled)}"
    for name, word in _COMPARED:
        usual = Counter(facts[rank][name] for rank in range(ranks)).most_common(1)[0][0]
        odd = [rank for rank in range(ranks) if facts[rank][name] != usual]
        if odd:
            first = facts[odd[0]]
            return f"rank {odd[0]} on {first['host']} has {word} {first[name]} instead of {usual}{_more(odd)}"
    return _USE


def _more(concerned: Sequence[int]) -> str:
    return "" if len(concerned) == 1 else f" (and {len(concerned) - 1} more)"


def _wait(store: Any, keys: Sequence[str], timeout_s: float, ranks: int) -> bool:
    """Poll until all keys are there: a `wait` that runs into its time limit leaves some stores unusable."""
    ends_s = time.monotonic() + timeout_s
    pause_s = 0.001
    while not store.check(list(keys)):
        if time.monotonic() > ends_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, max(0.02, ranks * 0.0005))  # one thread answers all ranks
    return True


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _nobody(_decision: int) -> None:
    """Stand for the plugin where there is none."""


def _say(sentence: str) -> None:
    try:
        print(f"ncclt: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError, AttributeError):
        return  # no stderr

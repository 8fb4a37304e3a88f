"""Does real NCCL load ncclt's plugin and do what its table says? Every claim is one row, held or not.

    python bench/gpu/plugin_loads.py --output FOLDER [--json] [--recipe fake-hosts|one-host] [--ranks 2]

Sends messages over several ranks on one GPU and compares NCCL's own TUNING lines: without a plugin, with an empty
table, with a table of rules per size, after a switch of the table in shared memory, and with tables to be refused.
Writes NCCL's logs, the tables, the plugin's reports and what `ncclt attest` says of them. Exit code 1 if a claim did
not hold, 2 if nothing could be tried.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from choices import Choice, Choices, LogParts

from live import UNSET, LiveRanks, Place, add_options, place_of, without_plugin
from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import DeliveredPolicy, Effect, Form
from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.policy import Policy, Rule
from ncclt.deliver.log_evidence import attest_files
from ncclt.errors import NccltError
from ncclt.nccl.tuner_table import NO_UPPER_END, table_checksum

KIB, MIB = 1 << 10, 1 << 20

FORCED = (8 * KIB, 128 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
"""Sizes of all_reduce that get a rule each."""

FREE = (32 * KIB, 512 * KIB, 8 * MIB)
"""Sizes of all_reduce between them, which no rule covers."""

OTHERS = (
    Message(collective=Collective.ALL_GATHER, dtype="float32", size_bytes=4 * MIB),
    Message(collective=Collective.REDUCE_SCATTER, dtype="float32", size_bytes=4 * MIB),
    Message(collective=Collective.BROADCAST, dtype="int64", size_bytes=8 * KIB),
)
"""Collectives without a rule, which nothing may touch."""

BYTES_PER_CHANNEL = 32 * KIB
"""NCCL gives a channel at least this much, so small messages run on fewer channels than asked for (nccl.md, 1.3)."""

TABLE_ID = "bench-gpu"

_NO_RULES = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing that was to hold.

    Attributes:
        claim: what.
        wanted, seen: for people.
        held: whether it did.
    """

    claim: str
    wanted: str
    seen: str
    held: bool


def messages(largest: int) -> tuple[Message, ...]:
    """Return what is sent, no message larger than `largest`."""
    own = [Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size) for size in (*FORCED, *FREE)]
    return tuple(m for m in (*own, *OTHERS) if m.size_bytes <= largest)


def contrary(choice: Choice, *, turn: int) -> tuple[Algorithm, Protocol, int]:
    """Return something else than the NCCL default, another one in every turn, and fewer channels if there are any."""
    pairs = [(a, p) for a in (Algorithm.RING, Algorithm.TREE) for p in (Protocol.SIMPLE, Protocol.LL)]
    others = [pair for pair in pairs if pair != (choice.algorithm, choice.protocol)]
    return (*others[turn % len(others)], max(1, choice.channels // 2))


def policy_against(default: Choices, *, turn: int) -> Policy:
    """Return rules of one size each that ask for the contrary of what NCCL chose."""
    rules = []
    for (collective, size), choice in sorted(default.items()):
        if collective is Collective.ALL_REDUCE and size in FORCED:
            algorithm, protocol, channels = contrary(choice, turn=turn)
            rules.append(
                Rule(
                    collective=collective,
                    min_bytes=size,
                    max_bytes=size,
                    algorithm=algorithm,
                    protocol=protocol,
                    channels=channels,
                )
            )
    return Policy(rules=tuple(rules))


def table_text(policy: Policy, *, nodes: int, ranks: int, nccl: str) -> str:
    """Return the table as ncclt writes one, with its first line."""
    rows = [
        f"{COLLECTIVE_WORDS[r.collective]},{r.min_bytes},{NO_UPPER_END if r.max_bytes is None else r.max_bytes},"
        f"{r.algorithm},{r.protocol},{r.channels or -1},{nodes},{ranks}"
        for r in policy.rules
    ]
    head = f"# ncclt-table 1 id={TABLE_ID} nccl={nccl} nodes={nodes} ranks={ranks} rows={len(rows)}"
    return "\n".join([f"{head} fnv1a={table_checksum(rows):016x}", *rows, ""])


def shared_rows(policy: Policy) -> list[dict[str, Any]]:
    """Return the rules as rows of a shared table."""
    return [
        {
            "collective": COLLECTIVE_WORDS[r.collective],
            "algorithm": r.algorithm,
            "protocol": r.protocol,
            "first_bytes": r.min_bytes,
            "last_bytes": r.max_bytes,
            "channels": r.channels or 0,
        }
        for r in policy.rules
    ]


def forced_claims(title: str, policy: Policy, seen: Choices) -> Iterator[Claim]:
    """Yield whether each rule was obeyed."""
    for rule in policy.rules:
        choice = seen.get((rule.collective, rule.min_bytes))
        wanted = f"{rule.algorithm}/{rule.protocol}/{rule.channels}"
        held = choice is not None and (choice.algorithm, choice.protocol) == (rule.algorithm, rule.protocol)
        if held and choice is not None and rule.channels is not None:
            few = rule.min_bytes < 16 * BYTES_PER_CHANNEL * rule.channels
            held = choice.channels == rule.channels or (few and choice.channels < rule.channels)
        yield Claim(
            claim=f"{title}: {rule.collective} of {format_bytes(rule.min_bytes)} goes as its rule says",
            wanted=wanted,
            seen=choice.label if choice else "not sent",
            held=held,
        )


def same_claims(title: str, default: Choices, seen: Choices, *, but: Policy = _NO_RULES) -> Iterator[Claim]:
    """Yield whether everything without a rule goes as by default, channels included."""
    ruled = {(rule.collective, rule.min_bytes) for rule in but.rules}
    for (collective, size), choice in sorted(default.items()):
        if (collective, size) not in ruled:
            now = seen.get((collective, size))
            yield Claim(
                claim=f"{title}: {collective} of {format_bytes(size)} stays NCCL's own",
                wanted=choice.label,
                seen=now.label if now else "not sent",
                held=now == choice,
            )


class Trials:
    """Opens the ranks under one table after another and collects claims.

    Args:
        place: with our plugin.
        sent: what is sent each time.
    """

    def __init__(self, place: Place, sent: Sequence[Message]) -> None:
        self.claims: list[Claim] = []
        self._place = replace(place, logged=True)
        self._sent = [asdict(m) for m in sent]
        self._nccl = ""
        self._shape = (1, 1)

    def run(self) -> None:
        """Try everything in order."""
        default = self._without_plugin()
        first = policy_against(default, turn=0)
        for step in (self._shared, self._file, self._refused):
            step(default, first)
            self.keep()

    def keep(self) -> None:
        """Write what was found so far: whoever has no more time for the rest still has this."""
        rows = [asdict(claim) for claim in self.claims]
        (self._place.output / "plugin_loads.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")

    def _without_plugin(self) -> Choices:
        with LiveRanks(self._in("no-plugin", without_plugin(self._place))) as ranks:
            cluster = ranks.cluster
            self._nccl, self._shape = cluster.nccl_version, (cluster.nodes, cluster.world_size)
            log = LogParts(ranks.log_of_rank_0, ranks.folder)
            return self._send(ranks, log, "without a plugin", "default")

    def _shared(self, default: Choices, first: Policy) -> None:
        second = policy_against(default, turn=1)
        with LiveRanks(self._in("shared-table", self._place)) as ranks:
            ranks.start()
            log = LogParts(ranks.log_of_rank_0, ranks.folder)
            self._loaded(log.head, "table in shared memory")
            self.claims += same_claims("empty table", default, self._send(ranks, log, "empty table", "empty"))
            for title, policy, name in (("first table", first, "first"), ("switched table", second, "second")):
                ranks.ask("publish", 30.0, rows=shared_rows(policy))
                seen = self._send(ranks, log, title, name)
                self.claims += forced_claims(title, policy, seen)
                self.claims += same_claims(title, default, seen, but=policy)
            ranks.ask("publish", 30.0, rows=[])
            self.claims += same_claims("emptied table", default, self._send(ranks, log, "emptied table", "emptied"))

    def _file(self, default: Choices, policy: Policy) -> None:
        table = self._table(
            "table.csv", table_text(policy, nodes=self._shape[0], ranks=self._shape[1], nccl=self._nccl)
        )
        place = self._in("table-file", self._place)
        reports = place.output / "reports"
        environ = {"NCCLT_POLICY_SHM": UNSET, "NCCLT_POLICY": str(table), "NCCLT_PLUGIN_REPORT": str(reports)}
        with LiveRanks(replace(place, environ=environ)) as ranks:
            ranks.start()
            log = LogParts(ranks.log_of_rank_0, ranks.folder)
            self._loaded(log.head, f"table {TABLE_ID}")
            seen = self._send(ranks, log, "table in a file", "table")
            self.claims += forced_claims("table in a file", policy, seen)
            self.claims += same_claims("table in a file", default, seen, but=policy)
            folder = ranks.folder
        self._attest(policy, [*sorted(reports.glob("*.jsonl")), folder / "nccl.table.log"])

    def _attest(self, policy: Policy, files: Sequence[Path]) -> None:
        delivered = DeliveredPolicy(
            recommendation=TABLE_ID,
            cluster="one-gpu",
            model=TABLE_ID,
            nccl_version=self._nccl,
            ranks=self._shape[1],
            form=Form.TABLE,
            policy=policy,
        )
        attestation = attest_files(files, delivered, created=datetime.now(UTC).isoformat(timespec="seconds"))
        (self._place.output / "attestation.json").write_text(json.dumps(attestation.to_document(), indent=1))
        self._claim("ncclt attest: took effect", Effect.TOOK_EFFECT, attestation.effect, note=attestation.reason)

    def _refused(self, default: Choices, policy: Policy) -> None:
        """Give tables that end NCCL's init, and those that NCCL goes on with as by default."""
        nodes, ranks = self._shape
        good = table_text(policy, nodes=nodes, ranks=ranks, nccl=self._nccl)
        rule = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.NVLS, protocol=Protocol.SIMPLE, channels=4)
        hostile = {
            "changed by hand": good.replace("allreduce,8192,8192", "allreduce,0,8192"),
            "cut off": "\n".join(good.splitlines()[:-1]) + "\n",
            "no table at all": "allreduce,0,lots,ring\n\x01\x02" + "x" * 5000,
        }
        for number, (title, text) in enumerate(hostile.items()):
            self._one_ended(title, self._table(f"hostile-{number}.csv", text))
        others = table_text(policy, nodes=nodes + 1, ranks=ranks + 1, nccl=self._nccl)
        self._one_refused("for other ranks", self._table("others.csv", others), default, said="is not used")
        nvls = table_text(Policy(rules=(rule,)), nodes=nodes, ranks=ranks, nccl=self._nccl)
        self._one_refused(
            "NVLS, which is not offered", self._table("nvls.csv", nvls), default, said=f"table {TABLE_ID}"
        )

    def _one_ended(self, title: str, table: Path) -> None:
        """Give a damaged table: a rank without it would differ from the others, so init fails."""
        environ = {"NCCLT_POLICY_SHM": UNSET, "NCCLT_POLICY": str(table)}
        place = self._in(table.stem, self._place)
        try:
            with LiveRanks(replace(place, environ=environ)) as ranks:
                ranks.start()
            said = "the ranks opened"
        except NccltError as error:
            said = error.message
        logs = [path.read_text(errors="replace") for path in place.output.rglob("*") if path.suffix in (".log", ".txt")]
        lines = [line for log in logs for line in log.splitlines() if "cannot use the table of NCCLT_POLICY" in line]
        self._claim(f"{title}: NCCL's init ends", "invalid usage", said, "invalid usage" in said)
        self._claim(
            f"{title}: the plugin says why", "cannot use the table", (lines or ["nothing"])[-1][-200:], bool(lines)
        )

    def _one_refused(self, title: str, table: Path, default: Choices, *, said: str) -> None:
        environ = {"NCCLT_POLICY_SHM": UNSET, "NCCLT_POLICY": str(table)}
        with LiveRanks(replace(self._in(table.stem, self._place), environ=environ)) as ranks:
            ranks.start()
            log = LogParts(ranks.log_of_rank_0, ranks.folder)
            self._loaded(log.head, said, title=title)
            self.claims += same_claims(title, default, self._send(ranks, log, title, "refused"))

    def _send(self, ranks: LiveRanks, log: LogParts, title: str, name: str) -> Choices:
        """Send everything twice, and return what NCCL chose."""
        answers = [ranks.ask("check", self._place.limit_s, messages=self._sent) for _ in range(2)]
        for answer in answers:
            if "wrong" not in answer:
                raise NccltError(f"{title}: {answer['outcome']}: {answer['detail']}", hint=f"see {ranks.folder}")
        wrong = sum(sum(answer["wrong"]) for answer in answers)
        self._claim(f"{title}: results are right", "0 wrong elements", f"{wrong} wrong elements")
        return log.cut(name)

    def _loaded(self, head: str, said: str, *, title: str = "") -> None:
        prefix = f"{title}: " if title else ""
        lines = [line.partition(" NCCL INFO ")[2] for line in head.splitlines() if "TUNER/" in line]
        used = [line for line in lines if "Using" in line and "ncclt" in line]
        # The last one: before it the communicators of one rank spoke, which fix the hosts (ranks.py).
        own = next((line for line in reversed(lines) if line.startswith("TUNER/ncclt:")), "nothing")
        last = lines[-1] if lines else "nothing"
        self._claim(
            f"{prefix}NCCL says that it uses the plugin", "Using ... ncclt", used[-1] if used else last, bool(used)
        )
        self._claim(f"{prefix}the plugin says what it does", said, own, said in own)

    def _claim(self, claim: str, wanted: str, seen: str, held: bool | None = None, *, note: str = "") -> None:
        shown = f"{seen} ({note})" if note else seen
        self.claims.append(Claim(claim=claim, wanted=wanted, seen=shown, held=seen == wanted if held is None else held))

    def _table(self, name: str, text: str) -> Path:
        path = self._place.output / "tables" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def _in(self, name: str, place: Place) -> Place:
        return replace(place, output=self._place.output / name)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--largest", type=int, default=64 * MIB, help="leave larger messages out (bytes)")
    parser.add_argument("--json", action="store_true", help="one document with rows")
    options = parser.parse_args(argv)
    try:
        sent = messages(options.largest)
        trials = Trials(place_of(options, room_bytes=max(m.size_bytes for m in sent)), sent)
        trials.run()
    except NccltError as error:
        print(f"bench/gpu/plugin_loads.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    rows = [asdict(claim) for claim in trials.claims]
    lost = [claim for claim in trials.claims if not claim.held]
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        for claim in trials.claims:
            print(f"{'held' if claim.held else 'LOST':5} {claim.claim:75} {claim.wanted:24} {claim.seen}")
        print(f"\n{len(trials.claims) - len(lost)} of {len(trials.claims)} claims held")
    return 1 if lost or not trials.claims else 0


if __name__ == "__main__":
    sys.exit(main())

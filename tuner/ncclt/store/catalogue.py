"""The workloads and clusters that can be named: what was shipped and what was added."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Connection, Table, delete, insert, select

from ncclt.core.cluster import Cluster
from ncclt.core.workload import Workload
from ncclt.errors import UsageError
from ncclt.store.documents import stored, to_text
from ncclt.store.names import unknown_name
from ncclt.store.shipped import CatalogueEntry
from ncclt.store.tables import clusters, workloads

Entry = TypeVar("Entry", Workload, Cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue(Generic[Entry]):
    """One kind of thing that can be named.

    Attributes:
        kind: its word in messages.
        table: where added ones are kept.
        record: what a document of it becomes.
    """

    kind: str
    table: Table
    record: type[Entry]

    def entries(self, connection: Connection, shipped: Mapping[str, Entry]) -> tuple[CatalogueEntry[Entry], ...]:
        """Return every entry by name; a shipped one hides an added one of the same name (after an update of ncclt)."""
        found = {name: CatalogueEntry(item=item, shipped=True) for name, item in shipped.items()}
        for name, text in connection.execute(select(self.table.c.name, self.table.c.document)):
            if name not in found:
                found[name] = CatalogueEntry(item=self._read(name, text), shipped=False)
        return tuple(found[name] for name in sorted(found))

    def entry(self, connection: Connection, shipped: Mapping[str, Entry], name: str) -> Entry:
        """Return one entry.

        Raises:
            NotFoundError: no entry has this name; the hint gives close ones.
        """
        if name in shipped:
            return shipped[name]
        text = connection.execute(select(self.table.c.document).where(self.table.c.name == name)).scalar()
        if text is not None:
            return self._read(name, text)
        names = [*shipped, *connection.execute(select(self.table.c.name)).scalars()]
        raise unknown_name(self.kind, name, names)

    def add(self, connection: Connection, shipped: Mapping[str, Entry], entry: Entry, *, replace: bool) -> None:
        """Keep an entry.

        Raises:
            UsageError: one of this name is shipped, or was added and is not to be replaced.
        """
        name = entry.name
        if name in shipped:
            raise UsageError(f"the {self.kind} {name!r} is shipped with ncclt, or imported", hint="choose another name")
        if replace:
            connection.execute(delete(self.table).where(self.table.c.name == name))
        elif connection.execute(select(self.table.c.name).where(self.table.c.name == name)).first():
            raise UsageError(f"there is a {self.kind} {name!r} already", hint="choose another name, or add --replace")
        connection.execute(insert(self.table).values(name=name, document=to_text(entry.to_document())))

    def _read(self, name: str, text: str) -> Entry:
        with stored(f"the {self.kind} {name!r}"):
            return self.record.from_document(json.loads(text))


WORKLOADS: Catalogue[Workload] = Catalogue(kind="workload", table=workloads, record=Workload)
CLUSTERS: Catalogue[Cluster] = Catalogue(kind="cluster", table=clusters, record=Cluster)


def added_clusters(connection: Connection, names: Collection[str]) -> dict[str, Cluster]:
    """Return those of some clusters that were added to the store, by name; shipped ones never change."""
    query = select(clusters.c.name, clusters.c.document).where(clusters.c.name.in_(sorted(names)))
    found = {}
    for name, text in connection.execute(query):
        with stored(f"the cluster {name!r}"):
            found[name] = Cluster.from_document(json.loads(text))
    return found

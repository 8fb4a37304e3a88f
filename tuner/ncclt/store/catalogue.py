"""The catalogues of workloads and clusters: those that come with ncclt and those that were added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic

from sqlalchemy import Connection, Table, delete, insert, select

from ncclt.core.cluster import Cluster
from ncclt.core.revision import Action, Actor
from ncclt.core.workload import Workload
from ncclt.errors import DuplicateError
from ncclt.store.documents import read_stored, to_text
from ncclt.store.failures import repeatable
from ncclt.store.history import note_event
from ncclt.store.names import unknown_name
from ncclt.store.part import StorePart
from ncclt.store.recommendations import note_change
from ncclt.store.revisions import noting_stale
from ncclt.store.shipped import Entry
from ncclt.store.tables import clusters, workloads
from ncclt.user_dirs import account_name


class Catalogue(StorePart, Generic[Entry]):
    """Named workloads or clusters."""

    kind: ClassVar[str]
    """The word for one in messages."""

    _table: ClassVar[Table]
    _record: type[Entry]

    @property
    def _came_with(self) -> Mapping[str, Entry]:
        entries: Mapping[str, Entry] = getattr(self._shipped, f"{self.kind}s")
        return entries

    @repeatable
    def entries(self) -> tuple[tuple[Entry, bool], ...]:
        """Return every entry by name, and whether it came with ncclt and cannot be replaced.

        A shipped one hides an added one of the same name (after an update of ncclt).

        Raises:
            InputError: a shipped file is broken.
        """
        entries = {name: (item, True) for name, item in self._came_with.items()}
        with self._database.reading() as connection:
            for name, text in connection.execute(select(self._table.c.name, self._table.c.document)):
                if name not in entries:
                    entries[name] = (self._read(name, text), False)
        return tuple(entries[name] for name in sorted(entries) if self._is_shown(name))

    @repeatable
    def get(self, name: str) -> Entry:
        """Return one entry.

        Raises:
            NotFoundError: the name is unknown; the hint gives close ones.
        """
        shipped: Mapping[str, Entry] = self._came_with
        if not self._is_shown(name):
            raise unknown_name(self.kind, name, self._scope)
        if name in shipped:
            return shipped[name]
        with self._database.reading() as connection:
            text = connection.execute(select(self._table.c.document).where(self._table.c.name == name)).scalar()
            if text is not None:
                return self._read(name, text)
            added: Sequence[str] = connection.execute(select(self._table.c.name)).scalars().all()
        raise unknown_name(self.kind, name, [entry for entry in (*shipped, *added) if self._is_shown(entry)])

    def _is_shown(self, name: str) -> bool:
        return self.kind != "cluster" or self._is_visible(name)

    def _read(self, name: str, text: str) -> Entry:
        return read_stored(self._record, f"the {self.kind} {name!r}", text)

    def _add(self, connection: Connection, entry: Entry, *, replace: bool) -> None:
        name = entry.name
        if name in self._came_with:
            raise DuplicateError(
                f"the {self.kind} {name!r} is shipped with ncclt, or imported", hint="choose another name"
            )
        if replace:
            connection.execute(delete(self._table).where(self._table.c.name == name))
        elif connection.execute(select(self._table.c.name).where(self._table.c.name == name)).first():
            raise DuplicateError(
                f"there is a {self.kind} {name!r} already", hint="choose another name, or add --replace"
            )
        connection.execute(insert(self._table).values(name=name, document=to_text(entry.to_document())))


class Workloads(Catalogue[Workload]):
    """The workloads; they belong to no cluster, so everybody sees all."""

    kind = "workload"
    _table = workloads
    _record = Workload

    def add(self, workload: Workload, *, replace: bool = False, by: Actor | None = None) -> None:
        """Store a workload under its name, with its entry in the history.

        Args:
            replace: one that was added before under this name.
            by: actor; None = the user of this process.

        Raises:
            DuplicateError: one of this name is shipped, or was added before and `replace` is not set.
        """
        with self._database.alone() as connection:
            with noting_stale(connection, self._shipped, self._clock(), model=workload.name):
                self._add(connection, workload, replace=replace)
            actor = by or Actor(who=account_name())
            note_event(connection, Action.WORKLOAD_ADDED, actor, self._clock(), model=workload.name)
            note_change(connection, model=workload.name)


class Clusters(Catalogue[Cluster]):
    """The clusters."""

    kind = "cluster"
    _table = clusters
    _record = Cluster

    def add(self, cluster: Cluster, *, replace: bool = False) -> None:
        """Store a cluster under its name; DuplicateError as for a workload."""
        self._require_visible(cluster.name)
        with (
            self._database.alone() as connection,
            noting_stale(connection, self._shipped, self._clock(), cluster=cluster.name),
        ):
            self._add(connection, cluster, replace=replace)
            actor = Actor(who=account_name())
            note_event(connection, Action.CLUSTER_ADDED, actor, self._clock(), cluster=cluster.name)

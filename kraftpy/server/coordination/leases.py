"""Leases on the partitions that this broker leads: of share groups, with their tables and sessions,
and of cooperative groups (`claimed_leases`).

Rules (docs/rules.md, rules 290, 291 and 358 to 360):

* A share group's table is opened when somebody first asks for its records, and given up with its
  partition's leadership, or when nobody of its group has a session here any more. There are so
  many at most; those that nobody misses give way (`led_tables`).
* What a session's member has is given back when the session ends, be it that its connection does;
  what it has acknowledged counts, written or not. Some tables are seen to in each turn of the loop,
  one that somebody asks for meanwhile first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.leasing import LeaseSettings, lease_settings
from kraftpy.core.leases.sessions import Key, ShareSession, ShareSessions
from kraftpy.core.metadata import ResourceType
from kraftpy.protocol.errors import KafkaError
from kraftpy.server.coordination.claimed_leases import ClaimedHost, ClaimedLeases
from kraftpy.server.coordination.led_table import LeaseMeters, LedTable, TableHost
from kraftpy.server.coordination.led_tables import LedTables, TableKey
from kraftpy.server.coordination.openings import Openings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kraftpy.core.metadata import MetadataState
    from kraftpy.server.replication.partition import Partition


TOGETHER_MAX: Final = 300
"""Tables that are seen to in a turn of the loop: 5 µs each."""


class LeasesHost(TableHost, ClaimedHost, Protocol):
    """What is needed of the broker."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def metadata(self) -> MetadataState: ...


class Leases:
    """See the module."""

    def __init__(self, host: LeasesHost) -> None:
        self._host = host
        self.meters = LeaseMeters()
        self.claimed = ClaimedLeases(host)
        self.sessions = ShareSessions(host.config.group_share_max_share_sessions)
        self._openings = Openings(host.loop)
        self._tables: LedTables[LedTable] = LedTables()
        self._owed: dict[LedTable, list[Callable[[LedTable], None]]] = {}
        self._pays = False
        self._of_group: dict[str, dict[LedTable, None]] = {}
        self._settings: dict[str, tuple[Mapping[str, str], BrokerConfig, LeaseSettings]] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def settings(self, group: str) -> LeaseSettings:
        """What the group's configuration says, by now."""
        configs = self._host.metadata.config(ResourceType.GROUP, group)
        config = self._host.config
        known = self._settings.get(group)
        if known is not None and known[0] is configs and known[1] is config:
            return known[2]
        found = lease_settings(configs, config)
        if group in self._of_group:  # else they would be kept for whoever asks
            self._settings[group] = configs, config, found
        return found

    # -- tables

    def tables(self) -> list[LedTable]:
        """All that there are now."""
        return list(self._tables)

    def table(self, group: str, led: Partition) -> LedTable:
        """The group's leases on a partition that is led here; they are opened if they aren't.

        Raises COORDINATOR_NOT_AVAILABLE if there are too many, or the broker stops.
        """
        table = self.open_table(group, led)
        return self._open(group, led) if table is None else table

    def open_table(self, group: str, led: Partition) -> LedTable | None:
        """The same if there is one."""
        key = TableKey(group, led.topic_id, led.index)
        table = self._tables.find(key)
        if table in self._owed:
            self._pay(table)
            return self._tables.find(key)  # it may be closed now
        return table

    @property
    def stopped(self) -> bool:
        """Whether nothing is opened any more."""
        return self._tables.stopped

    def _open(self, group: str, led: Partition) -> LedTable:
        key, settings = TableKey(group, led.topic_id, led.index), partial(self.settings, group)
        table = self._tables.open(
            key,
            lambda: LedTable(
                self._host, key, led, settings, self.meters, self._openings, self._given_up
            ),
        )
        self._of_group.setdefault(group, {})[table] = None
        return table

    def _given_up(self, table: LedTable) -> None:
        group = table.key.group
        self._tables.forget(table)
        of_group = self._of_group[group]
        del of_group[table]
        if not of_group:
            del self._of_group[group]
            self._settings.pop(group, None)

    # -- sessions

    def begin(
        self, group: str, member: str, partitions: Collection[Key], connection: str
    ) -> ShareSession:
        """A new session. Raises SHARE_SESSION_LIMIT_REACHED."""
        before = self.sessions.of_member(group, member)
        try:
            return self.sessions.begin(group, member, partitions, connection)
        except KafkaError:
            if before is not None:
                self._give_back(before)
            raise

    def update(self, session: ShareSession, added: Iterable[Key], forgotten: Iterable[Key]) -> None:
        """Changes what it fetches. Raises SHARE_SESSION_LIMIT_REACHED, and then it's over."""
        try:
            self.sessions.update(session, added, forgotten)
        except KafkaError:
            self._give_back(session)
            raise

    def end(self, session: ShareSession) -> None:
        """Gives back what its member has, unless it is over: that may be another session's."""
        if not session.ended:
            self._give_back(session)

    def _give_back(self, session: ShareSession) -> None:
        self._end(session)
        self._pay_some()

    def connection_closed(self, connection: str) -> None:
        """Ends the sessions that this connection used last."""
        for session in self.sessions.of_connection(connection):
            self._end(session)
        self._pay_some()

    def _end(self, session: ShareSession) -> None:
        self.sessions.end(session)
        self._owe(session.leased_from, partial(LedTable.release, member=session.member))
        if not self.sessions.has(session.group):
            self._owe(self._of_group.get(session.group, ()), LedTable.retire)

    def _owe(self, tables: Iterable[LedTable], what: Callable[[LedTable], None]) -> None:
        for table in tables:
            self._owed.setdefault(table, []).append(what)

    def _pay(self, table: LedTable) -> None:
        for what in self._owed.pop(table):
            what(table)

    def _pay_some(self) -> None:
        """Does what is to be done with tables, and the rest in the next turns."""
        if not self._pays:
            self._go_on_paying()

    def _go_on_paying(self) -> None:
        for table in list(islice(self._owed, TOGETHER_MAX)):
            if table in self._owed:
                self._pay(table)
        self._pays = bool(self._owed)
        if self._pays:
            self._host.loop.call_soon(self._go_on_paying)

    async def close(self) -> None:
        """Gives up all that there is, and opens nothing any more."""
        await self._tables.stop()
        await self.claimed.close()

"""Leases on the partitions that this broker leads: of share groups, with their tables and sessions,
and of cooperative groups (`claimed_leases`).

Rules (docs/rules.md, rules 290 and 291):

* A share group's table is opened when somebody first asks for its records, and given up with its
  partition's leadership, or when nobody of its group has a session here any more. There are
  TABLES_MAX at most; those that nobody misses give way.
* What a session's member has is given back when the session ends, be it that its connection does;
  what it has acknowledged counts, written or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.leasing import LeaseSettings, lease_settings
from kraftpy.core.leases.sessions import Key, ShareSession, ShareSessions
from kraftpy.core.metadata import ResourceType
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.claimed_leases import ClaimedHost, ClaimedLeases
from kraftpy.server.coordination.led_table import LeaseMeters, LedTable, TableHost, TableKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kraftpy.core.metadata import MetadataState
    from kraftpy.server.replication.partition import Partition

TABLES_MAX: Final = 20_000
"""A table that does nothing takes 2 KB, a full one of 2,000 records 80."""

_LOOKED_AT_MAX: Final = 100


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
        self.stopped = False
        self.meters = LeaseMeters()
        self.claimed = ClaimedLeases(host)
        self.sessions = ShareSessions(host.config.group_share_max_share_sessions)
        self._tables: dict[TableKey, LedTable] = {}
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
        return list(self._tables.values())

    def table(self, group: str, led: Partition) -> LedTable:
        """The group's leases on a partition that is led here; they are opened if they aren't.

        Raises COORDINATOR_NOT_AVAILABLE if there are too many, or the broker stops.
        """
        key = TableKey(group, led.topic_id, led.index)
        table = self._tables.get(key)
        if table is None:
            if self.stopped or (len(self._tables) >= TABLES_MAX and not self._make_room()):
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            of_group = self._of_group.setdefault(group, {})
            settings = partial(self.settings, group)
            table = LedTable(self._host, key, led, settings, self.meters, self._given_up)
            self._tables[key] = table
            of_group[table] = None
        return table

    def open_table(self, group: str, led: Partition) -> LedTable | None:
        """The same if there is one."""
        return self._tables.get(TableKey(group, led.topic_id, led.index))

    def _make_room(self) -> bool:
        for table in self._oldest(_LOOKED_AT_MAX):
            if table.is_idle:
                table.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return True
            key = table.key
            self._tables[key] = self._tables.pop(key)  # another one is looked at next time
        return False

    def _oldest(self, count: int) -> Iterator[LedTable]:
        for _ in range(min(count, len(self._tables))):
            yield next(iter(self._tables.values()))

    def _given_up(self, table: LedTable) -> None:
        group = table.key.group
        del self._tables[table.key]
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
        return self.sessions.begin(group, member, partitions, connection)

    def end(self, session: ShareSession) -> None:
        """Gives back what its member has."""
        self.sessions.end(session)
        for table in session.leased_from:
            table.release(session.member)
        if not self.sessions.has(session.group):
            for table in list(self._of_group.get(session.group, ())):
                table.retire()

    def connection_closed(self, connection: str) -> None:
        """Ends the sessions that this connection used last."""
        for session in self.sessions.of_connection(connection):
            self.end(session)

    async def close(self) -> None:
        """Gives up all that there is, and opens nothing any more."""
        self.stopped = True
        await asyncio.gather(*(table.stop() for table in list(self._tables.values())))
        await self.claimed.close()

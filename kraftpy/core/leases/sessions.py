"""Share sessions: which partitions a member of a share group fetches from a broker (KIP-932).

Rules:

* A session is of one member of one group, and of the connection that used it last, with which it
  ends. It counts epochs: 0 begins it, in the place of the one that there was, whose leases stay; -1
  ends it; in between each is one more than the last.
* A fetch that acknowledges records of a partition names it like any other: the partition is in the
  session until it is forgotten.
* The partition that comes first turns with the epoch, so that none starves.
* Bounded: sessions (`group.share.max.share.sessions`), and the partitions of one and of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

from kraftpy.protocol.errors import ErrorCode, KafkaError

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
# A partition takes some 150 bytes.
PARTITIONS_MAX = 100_000
PARTITIONS_PER_SLOT = 200

Key: TypeAlias = tuple[bytes, int]
"""A partition by its topic's id and its index."""


class ShareSession:
    """What a member fetches, in the order in which it asked for it.

    `epoch` is that of its next request; `leased_from` are tables that it may have leases in.
    """

    __slots__ = ("connection", "ended", "epoch", "group", "leased_from", "member", "partitions")

    def __init__(self, group: str, member: str, connection: str) -> None:
        self.group = group
        self.member = member
        self.connection = connection
        self.epoch = 1
        self.ended = False
        self.partitions: dict[Key, None] = {}
        self.leased_from: dict[Any, None] = {}

    def in_turn(self) -> list[Key]:
        """Its partitions, in this epoch's order."""
        keys = list(self.partitions)
        if len(keys) > 1:
            turn = self.epoch % len(keys)
            return keys[turn:] + keys[:turn]
        return keys


class ShareSessions:
    """All sessions of a broker: `slots` of them at most; a connection is named by its peer."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._partitions_max = max(PARTITIONS_MAX, slots * PARTITIONS_PER_SLOT)
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connection: dict[str, dict[ShareSession, None]] = {}
        self._of_group: dict[str, int] = {}
        self.partitions_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def has(self, group: str) -> bool:
        """Whether any member of the group has a session."""
        return group in self._of_group

    def of_connection(self, connection: str) -> list[ShareSession]:
        """The sessions that this connection used last."""
        return list(self._of_connection.get(connection, ()))

    def begin(
        self, group: str, member: str, partitions: Collection[Key], connection: str
    ) -> ShareSession:
        """A new session. Raises SHARE_SESSION_LIMIT_REACHED."""
        before = self._sessions.get((group, member))
        if before is None and len(self._sessions) >= self._slots:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(group, member, connection)
        if before is not None:
            session.leased_from = before.leased_from
            self.end(before)
        self._sessions[group, member] = session
        self._of_connection.setdefault(connection, {})[session] = None
        self._of_group[group] = self._of_group.get(group, 0) + 1
        self.update(session, partitions, ())
        return session

    def of_member(self, group: str, member: str) -> ShareSession | None:
        """The member's session, if it has one."""
        return self._sessions.get((group, member))

    def find(self, group: str, member: str) -> ShareSession:
        """The same. Raises SHARE_SESSION_NOT_FOUND."""
        session = self.of_member(group, member)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def resume(self, group: str, member: str, epoch: int, connection: str) -> ShareSession:
        """The member's session, whose epoch goes on.

        Raises SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self.find(group, member)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        if session.connection != connection:
            self._leave_connection(session)
            session.connection = connection
            self._of_connection.setdefault(connection, {})[session] = None
        return session

    def update(self, session: ShareSession, added: Iterable[Key], forgotten: Iterable[Key]) -> None:
        """Changes what it fetches, if it isn't over. SHARE_SESSION_LIMIT_REACHED ends it."""
        if session.ended:
            return
        before = len(session.partitions)
        session.partitions.update(dict.fromkeys(added))
        for key in forgotten:
            session.partitions.pop(key, None)
        self.partitions_count += len(session.partitions) - before
        if len(session.partitions) > PARTITIONS_MAX or self.partitions_count > self._partitions_max:
            self.end(session)
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)

    def end(self, session: ShareSession) -> None:
        """It's over; what its member has leased is for others to give back."""
        if session.ended:
            return
        session.ended = True
        del self._sessions[session.group, session.member]
        self.partitions_count -= len(session.partitions)
        self._leave_connection(session)
        left = self._of_group[session.group] - 1
        if left:
            self._of_group[session.group] = left
        else:
            del self._of_group[session.group]

    def _leave_connection(self, session: ShareSession) -> None:
        sessions = self._of_connection[session.connection]
        del sessions[session]
        if not sessions:
            del self._of_connection[session.connection]

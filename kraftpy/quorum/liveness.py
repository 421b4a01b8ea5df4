"""Which brokers have to be fenced: the leader's soft sessions, as a machine without a clock.

Every voter keeps them, leading or not, because brokers are connected to all voters: a voter that
becomes the leader then knows at once which brokers died together with its predecessor.

Rules:

* A session belongs to one life of a broker (its epoch). What another process says under the same
  broker id, without an epoch or with an older one, doesn't prolong it.
* A broker that is connected is to be fenced when nothing was heard from it for the session timeout
  (KIP-631): it hangs, or its machine is gone without a word.
* One whose connection broke is to be fenced when it isn't back within the disconnect grace: the
  kernel closes the connections of a process that died.
* A new leader gives connected brokers a fresh session, and the others `CONNECT_MS` to appear;
  except that the grace of a connection that broke within the last `RECENT_MS` goes on: that broker
  probably died with the old leader.
* A broker whose last connection broke is suspected, from that moment until it is back or fenced.
  Nothing is decided on that; clients need not be sent there. It ends when there has been a leader
  for `SUSPICION_MS` who did not fence the broker: only the way between these two is broken.
* Time in which this process itself stood still is credited to everybody: the heartbeats that
  arrived meanwhile have not been read yet.
* A decision is given once, until it is reported as failed. Fencing is always safe (epochs guard
  the data), so a wrong decision costs availability only.

Times are milliseconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.frozen import NamedTuple

NO_EPOCH = -1
CONNECT_MS = 1_000
RECENT_MS = 2_000
RETRY_MS = 1_000
TICK_MS = 100
STALL_MS = 100
SUSPICION_MS = 1_000


class Fencing(NamedTuple):
    """A decision to fence one life of a broker; `is_connected`: it hangs, else it is gone."""

    broker_id: int
    broker_epoch: int
    is_connected: bool


class _Session:
    """One life of a broker. `connect_by_ms` counts only while it has no connection."""

    __slots__ = ("connect_by_ms", "connections", "epoch", "fencing", "gone_at_ms", "heard_at_ms")

    def __init__(self, epoch: int, now_ms: float) -> None:
        self.epoch = epoch
        self.connections: set[int] = set()
        self.heard_at_ms = now_ms
        self.gone_at_ms: float | None = None
        self.connect_by_ms = now_ms + CONNECT_MS
        self.fencing = False


class Liveness:
    """See the module. A connection is known by a number of the caller's choice."""

    def __init__(self, session_timeout_ms: int, disconnect_grace_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._disconnect_grace_ms = disconnect_grace_ms
        self._sessions: dict[int, _Session] = {}
        self._connections: dict[int, tuple[int, int]] = {}
        self._unfenced: Mapping[int, int] = {}
        self._leads = False
        self._led_since_ms: float | None = None
        self._wake_at_ms: float | None = None
        self.suspects: frozenset[int] = frozenset()

    # -- what is heard

    def heard(self, connection: int, broker_id: int, broker_epoch: int, now_ms: float) -> None:
        """The broker has connected, or said something; `broker_epoch` as it knows it itself."""
        if self._connections.get(connection) != (broker_id, broker_epoch):
            self.disconnected(connection, now_ms)
            self._connections[connection] = broker_id, broker_epoch
        session = self._sessions.get(broker_id)
        if broker_epoch == NO_EPOCH or (session is not None and broker_epoch < session.epoch):
            return
        if session is None or broker_epoch > session.epoch:
            session = self._sessions[broker_id] = _Session(broker_epoch, now_ms)
        session.connections.add(connection)
        session.heard_at_ms = now_ms
        if broker_id in self.suspects:
            self.suspects -= {broker_id}

    def disconnected(self, connection: int, now_ms: float) -> None:
        """The connection has ended."""
        broker_id, epoch = self._connections.pop(connection, (NO_EPOCH, NO_EPOCH))
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch or connection not in session.connections:
            return
        session.connections.remove(connection)
        if not session.connections:
            session.gone_at_ms = now_ms
            session.connect_by_ms = now_ms + self._disconnect_grace_ms
            if self._unfenced.get(broker_id) == epoch:
                self.suspects |= {broker_id}

    # -- what the leader decides

    def leader_changed(self, is_known: bool, now_ms: float) -> None:
        """Another voter leads, or (`is_known` is False) nobody does."""
        self._leads = False
        self._led_since_ms = now_ms if is_known else None

    def lead(self, now_ms: float) -> None:
        """This voter has become the leader, and has applied all that was committed before."""
        self._led_since_ms = now_ms
        self._leads = True
        for session in self._sessions.values():
            session.fencing = False
            session.heard_at_ms = now_ms
            gone_at_ms = session.gone_at_ms
            if gone_at_ms is None or now_ms - gone_at_ms > RECENT_MS:
                session.connect_by_ms = now_ms + CONNECT_MS

    def tick(self, unfenced: Mapping[int, int], now_ms: float) -> list[Fencing]:
        """Whom to fence now; call it again at `wake_at_ms`.

        `unfenced` are the brokers that are registered and not fenced, with their epochs.
        """
        if self._wake_at_ms is not None and now_ms - self._wake_at_ms > STALL_MS:
            self._credit(now_ms - self._wake_at_ms)
        due: list[Fencing] = []
        wake_at_ms = now_ms + TICK_MS
        for broker_id, epoch in unfenced.items():
            session = self._sessions.get(broker_id)
            if session is None or session.epoch < epoch or (session.epoch > epoch and self._leads):
                session = self._sessions[broker_id] = _Session(epoch, now_ms)
            if self._unfenced.get(broker_id) != epoch and not session.connections:
                # It may have gone before it was known here that it had been let in.
                self.suspects |= {broker_id}
            if session.fencing or not self._leads:
                continue
            deadline_ms = self._deadline_ms(session)
            if now_ms >= deadline_ms:
                session.fencing = True
                due.append(Fencing(broker_id, epoch, bool(session.connections)))
            else:
                wake_at_ms = min(wake_at_ms, deadline_ms)
        for broker_id, session in list(self._sessions.items()):
            if broker_id not in unfenced and not session.connections:
                del self._sessions[broker_id]
        self._unfenced = unfenced
        self._wake_at_ms = wake_at_ms
        if self.suspects:
            self.suspects = frozenset(id_ for id_ in self.suspects if self._is_suspect(id_, now_ms))
        return due

    def _is_suspect(self, broker_id: int, now_ms: float) -> bool:
        session = self._sessions.get(broker_id)
        if session is None or session.connections or session.gone_at_ms is None:
            return False
        since_ms = self._led_since_ms
        return self._unfenced.get(broker_id) == session.epoch and (
            since_ms is None or now_ms - max(since_ms, session.gone_at_ms) < SUSPICION_MS
        )

    @property
    def wake_at_ms(self) -> float:
        """When `tick` has to be called next, unless something is heard before; 0 at first."""
        return self._wake_at_ms or 0

    def carried_out(self, broker_id: int, broker_epoch: int) -> None:
        """The decision to fence has been applied: if the broker is unfenced again, that's new."""
        session = self._sessions.get(broker_id)
        if session is not None and session.epoch == broker_epoch:
            session.fencing = False

    def failed(self, broker_id: int, broker_epoch: int, now_ms: float) -> None:
        """The decision to fence could not be carried out: it is due again a little later."""
        self.carried_out(broker_id, broker_epoch)
        session = self._sessions.get(broker_id)
        if session is not None and session.epoch == broker_epoch:
            session.heard_at_ms = now_ms + RETRY_MS - self._session_timeout_ms
            session.connect_by_ms = now_ms + RETRY_MS

    def _deadline_ms(self, session: _Session) -> float:
        if session.connections:
            return session.heard_at_ms + self._session_timeout_ms
        return session.connect_by_ms

    def _credit(self, stalled_ms: float) -> None:
        for session in self._sessions.values():
            session.heard_at_ms += stalled_ms
            session.connect_by_ms += stalled_ms
            if session.gone_at_ms is not None:
                session.gone_at_ms += stalled_ms

"""What clients have used of their quotas at one broker, and what one request takes of them.

`core.quotas` has the rules, `client_quotas` those of what is counted, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from kraftpy.core.quotas import (
    CLIENT_KEYS,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    REQUEST_THROTTLE_MAX_S,
    Ledger,
    QuotaTable,
)

if TYPE_CHECKING:
    from kraftpy.server.network.session import Muted, Session

WAIT_MAX_S: Final = 3600.0
"""Nobody is muted for longer at a time."""

Clock = Callable[[], float]


class ThrottleNumbers:
    """How often clients were told to wait for one kind of quota, and for how long in all."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


class QuotaUse:
    """What all clients have used, by what kind of quota; `clock` is that of `Connection.taken_s`.

    `clocked_until_s`: until then the time of a request has been counted.
    """

    def __init__(self, clock: Clock = perf_counter) -> None:
        nothing = QuotaTable()
        self.producer = Ledger(PRODUCER_BYTE_RATE, nothing)
        self.consumer = Ledger(CONSUMER_BYTE_RATE, nothing)
        self.requests = Ledger(REQUEST_PERCENTAGE, nothing)
        self.numbers = {key: ThrottleNumbers() for key in CLIENT_KEYS}
        self.clock = clock
        self.clocked_until_s = -math.inf

    def mute(self, connection: Muted, key: str, wait_s: float) -> float:
        """Has a client wait for this kind of quota, WAIT_MAX_S at most; for how long it does."""
        wait_s = min(wait_s, WAIT_MAX_S)
        numbers = self.numbers[key]
        numbers.count += 1
        numbers.seconds += wait_s
        connection.mute(wait_s)
        return wait_s


class Used:
    """What one request takes of its client's quotas; it `fetches` what counts for one."""

    __slots__ = ("_client_id", "_clocked", "_session", "_took_s", "_use", "_wait_s", "fetches")

    def __init__(
        self, use: QuotaUse, session: Session, client_id: str | None, *, clocked: bool
    ) -> None:
        self._use = use
        self._session = session
        self._client_id = client_id
        self._clocked = clocked
        self._wait_s = 0.0
        self._took_s = 0.0
        self.fetches = False

    def produce(self, size_bytes: int) -> None:
        """Counts what came; behind what is too much nothing more is taken."""
        ledger = self._use.producer
        user, now_s = self._session.principal.name, self._use.clock()
        self._wait(ledger, ledger.record(user, self._client_id, size_bytes, now_s))

    def may_send(self, size_bytes: int) -> bool:
        """Whether so much may be answered to a fetch: it is counted then."""
        if not self.fetches:
            return True
        ledger = self._use.consumer
        user, now_s = self._session.principal.name, self._use.clock()
        wait_s = ledger.record_if_within(user, self._client_id, size_bytes, now_s)
        self._wait(ledger, wait_s)
        return wait_s <= 0

    @property
    def now_s(self) -> float:
        """The time that `took` counts from."""
        return self._use.clock() if self._clocked else 0.0

    def took(self, began_s: float) -> None:
        """The request has had the loop since then, until now."""
        if self._clocked:
            now_s = self._use.clocked_until_s = self._use.clock()
            self._took_s += now_s - began_s

    def answered(self, response: Any) -> Any:
        """The response as it goes out; None if none is due."""
        if response is None:
            return None
        self.failed()
        if self._wait_s and hasattr(response, "throttle_time_ms"):
            wait_ms = math.ceil(self._wait_s * 1000)
            response.throttle_time_ms = max(response.throttle_time_ms, wait_ms)
        return response

    def failed(self) -> None:
        """Nothing is left to be done but to answer, be it with an error."""
        if self._clocked:
            self._wait(self._use.requests, min(self._count_time(), REQUEST_THROTTLE_MAX_S))

    def encode(self, took_s: float) -> None:
        """So long it took to encode the answer, which the next request waits for."""
        if self._clocked:
            self._took_s += took_s
            self._count_time()

    def _count_time(self) -> float:
        ledger = self._use.requests
        user, took_s, self._took_s = self._session.principal.name, self._took_s, 0.0
        return ledger.record(user, self._client_id, took_s * 100, self._use.clock())

    def _wait(self, ledger: Ledger, wait_s: float) -> None:
        """The client has to wait from now on."""
        if wait_s <= 0:
            return
        connection = self._session.connection
        assert connection is not None
        self._wait_s = max(self._wait_s, self._use.mute(connection, ledger.key, wait_s))

"""How many connections a broker takes, and how fast: who is let in, who waits, who is refused.

Rules, those of Kafka's `ConnectionQuotas` (KIP-402, KIP-612):

* A connection waits until there is a slot for it: one of `max.connections` of the broker, and one
  of its listener. It waits, too, while more have come than `max.connection.creation.rate` allows,
  of the broker's or the listener's; WAIT_MAX_S at most, then it has its turn all the same.
* The listener of other brokers, where it's not the only one, is exempt from what is the broker's:
  neither slot nor rate holds it up. What it takes beyond `max.connections`, connections of other
  listeners give back.
* Who has waited is refused still if its address has as many as `max.connections.per.ip` or its
  override allows, or if they come faster than its `connection_creation_rate`. What is refused for
  its rate counts against none.
* What is remembered of addresses is bounded: how many connections each has, by the connections
  that there are; how fast they come, by ADDRESSES_MAX, of which those that were idle for longest
  are forgotten first.

Times are arguments, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from kraftpy.core.config.kinds import INT_MAX
from kraftpy.core.quotas import CONNECTION_CREATION_RATE, IP, WINDOW_S, WINDOWS, QuotaTable, Rate
from kraftpy.frozen import NamedTuple

UNLIMITED: Final = INT_MAX
WAIT_MAX_S: Final = WINDOW_S
"""For a rate nobody waits longer."""
ADDRESSES_MAX: Final = 10_000
"""Of so many it's remembered how fast their connections come."""
_FORGOTTEN_TOGETHER_MAX = 128
"""Of those that were idle so many are forgotten for each connection that comes."""

_KEPT_S = WINDOWS * WINDOW_S
_NONE: Mapping[str, int] = MappingProxyType({})


class Limits(NamedTuple):
    """Of a broker or a listener: how many connections at most, and how many more in a second."""

    connections: int = UNLIMITED
    rate: int = UNLIMITED


class ConnectionLimits(NamedTuple):
    """What counts at a broker. `overrides` are by address; `exempt` is the listener, if any, that
    has nothing to do with the broker's."""

    broker: Limits = Limits()
    listeners: Mapping[str, Limits] = MappingProxyType({})
    per_ip: int = UNLIMITED
    overrides: Mapping[str, int] = _NONE
    exempt: str | None = None


class Refusal(NamedTuple):
    """Why a connection is closed, and for how long it's kept open before."""

    limit: str
    delay_s: float = 0.0


class AddressRates:
    """How fast connections come from each address that has a `connection_creation_rate`."""

    def __init__(
        self, quotas: Callable[[], QuotaTable] = QuotaTable, addresses_max: int = ADDRESSES_MAX
    ) -> None:
        self._quotas = quotas
        self._addresses_max = addresses_max
        # With the time at which one came last.
        self._rates: OrderedDict[str, tuple[Rate, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rates)

    def limit(self, address: str) -> float | None:
        """What counts for this address: its own, else that of the default."""
        quotas = self._quotas()
        if not quotas.anybody_has(CONNECTION_CREATION_RATE):
            return None
        own = quotas.get(((IP, address),)).get(CONNECTION_CREATION_RATE)
        return quotas.get(((IP, None),)).get(CONNECTION_CREATION_RATE) if own is None else own

    def over_s(self, address: str, now_s: float) -> float:
        """Counts a connection unless that is too much; for how long none may come then."""
        limit = self.limit(address)
        if limit is None:
            self._forget(now_s)
            return 0.0
        known = self._rates.pop(address, None)
        rate = Rate() if known is None else known[0]
        rate.record(1, now_s)
        over_s = rate.over_s(limit, now_s)
        if over_s:
            rate.take_back(1, now_s)
        self._rates[address] = rate, now_s
        self._forget(now_s)
        return over_s

    def _forget(self, now_s: float) -> None:
        while len(self._rates) > self._addresses_max:
            self._rates.popitem(last=False)
        for address in tuple(islice(self._rates, _FORGOTTEN_TOGETHER_MAX)):
            if now_s - self._rates[address][1] < _KEPT_S:
                return
            del self._rates[address]


class ConnectionQuotas:
    """The connections that there are at a broker, and who may come; see the module.

    Of a connection come `arrive`, `has_slot` until there is one, `refusal`, and `enter` if it isn't
    refused; `leave` at its end.
    """

    def __init__(
        self, limits: ConnectionLimits, quotas: Callable[[], QuotaTable] = QuotaTable
    ) -> None:
        self.limits = limits
        self.total = 0
        self.address_rates = AddressRates(quotas)
        self._of_listener: Counter[str] = Counter()
        self._of_address: Counter[str] = Counter()
        self._broker_rate = Rate()
        self._listener_rates: dict[str, Rate] = {}

    def of_address(self, address: str) -> int:
        """How many connections an address has."""
        return self._of_address[address]

    @property
    def addresses(self) -> int:
        """How many addresses have connections."""
        return len(self._of_address)

    def _rates(self, listener: str) -> list[tuple[Rate, int]]:
        """What is counted of the listener's connections, with the limit; nothing where is none."""
        rates = []
        if listener != self.limits.exempt and self.limits.broker.rate < UNLIMITED:
            rates.append((self._broker_rate, self.limits.broker.rate))
        own = self.limits.listeners.get(listener)
        if own is not None and own.rate < UNLIMITED:
            rates.append((self._listener_rates.setdefault(listener, Rate()), own.rate))
        return rates

    def arrive(self, listener: str, now_s: float) -> float:
        """A connection has come; for how long it waits at least, for the rates' sake."""
        wait_s = 0.0
        for rate, limit in self._rates(listener):
            rate.record(1, now_s)
            wait_s = max(wait_s, rate.over_s(limit, now_s) if limit else WAIT_MAX_S)
        return min(wait_s, WAIT_MAX_S)

    def has_slot(self, listener: str) -> bool:
        """Whether there is room for one more."""
        own = self.limits.listeners.get(listener)
        if own is not None and self._of_listener[listener] >= own.connections:
            return False
        return listener == self.limits.exempt or self.total < self.limits.broker.connections

    def what_is_full(self, listener: str) -> str:
        """The limit that keeps it from having a slot, for people."""
        own = self.limits.listeners.get(listener)
        if own is not None and self._of_listener[listener] >= own.connections:
            return f"listener.name.{listener.lower()}.max.connections={own.connections}"
        return f"max.connections={self.limits.broker.connections}"

    def what_is_fast(self, listener: str) -> str:
        """The rate that it is held to, for people."""
        own = self.limits.listeners.get(listener)
        broker = UNLIMITED if listener == self.limits.exempt else self.limits.broker.rate
        if own is not None and own.rate <= broker:
            return f"listener.name.{listener.lower()}.max.connection.creation.rate={own.rate}"
        return f"max.connection.creation.rate={broker}"

    def refusal(self, listener: str, address: str, now_s: float) -> Refusal | None:
        """Why one that has had its turn isn't let in; None: it is."""
        over_s = self.address_rates.over_s(address, now_s)
        if over_s:
            for rate, _ in self._rates(listener):
                rate.take_back(1, now_s)
            limit = self.address_rates.limit(address)
            return Refusal(
                f"{CONNECTION_CREATION_RATE}={limit:g} a second", min(over_s, WAIT_MAX_S)
            )
        most = self.limits.overrides.get(address)
        if most is None:
            if self._of_address[address] >= self.limits.per_ip:
                return Refusal(f"max.connections.per.ip={self.limits.per_ip}")
        elif self._of_address[address] >= most:
            return Refusal(f"max.connections.per.ip.overrides={address}:{most}")
        return None

    def enter(self, listener: str, address: str) -> None:
        """It's let in."""
        self.total += 1
        self._of_listener[listener] += 1
        self._of_address[address] += 1

    def leave(self, listener: str, address: str) -> None:
        """It has ended."""
        self.total -= 1
        self._of_listener[listener] -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    @property
    def excess(self) -> int:
        """How many connections of listeners that aren't exempt are to be closed."""
        return max(0, self.total - self.limits.broker.connections)

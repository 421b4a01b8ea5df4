"""Quotas of clients (KIP-13, 124, 546, 599, 612): which counts for whom, and what is over it.

Rules:

* A quota is of an entity: of a user, a client id, or both; each by name or by default, which is
  meant for all that have none by name. Those of an ip are its alone, and name it by its address:
  what a name stands for may change, and differ from broker to broker.
* Values are finite and above 0, and whole where the key counts whole things. A quota that is not a
  number would hold back nobody: nothing compares with it.
* Of eight levels, as in Kafka's `ClientQuotaManager`, the first counts that has the key: see
  `Ledger`. Clients that share a quota share what is counted against it.
* A rate is that of the last eleven seconds, in windows of one, as if at least ten had passed. Who
  is over it waits until that is no longer so if nothing else comes, as Kafka's
  `QuotaUtils.throttleTime` has it.
* Times are arguments, in seconds of one monotonic clock. What is kept of clients is bounded: those
  that were idle for longest are forgotten first, and whoever was idle for eleven seconds when
  others come, some at a time: all at once they would hold up whoever comes then.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_KEYS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
_WHOLE_MAX: Final = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""The largest value of keys that take only whole numbers."""

NAME_LENGTH_MAX: Final = 512
"""The longest name that a quota can be set for."""

WINDOWS: Final = 11
WINDOW_S: Final = 1.0
FULL_WINDOWS_S: Final = (WINDOWS - 1) * WINDOW_S
"""So much time is counted with at least."""
_KEPT_S = WINDOWS * WINDOW_S
REQUEST_THROTTLE_MAX_S: Final = WINDOW_S
"""For its share of the loop's time nobody waits longer."""

CLIENTS_MAX: Final = 10_000
"""Of so many something is kept."""
_FORGOTTEN_TOGETHER_MAX = 8
"""Of those who were idle so many are forgotten when another one comes."""

Entity = tuple[tuple[str, str | None], ...]
"""Its parts, each of type and name, sorted by type; the name None is that of the default."""
Values = Mapping[str, float]
"""The quotas of one entity, by their keys."""
_NOTHING: Values = MappingProxyType({})


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity with these parts, of addresses as they are written in short.

    Raises ValueError if nothing has quotas that is made like that.
    """
    entity = dict[str, str | None]()
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            raise ValueError(f"quotas are of {USER}, {CLIENT_ID} and {IP}, not of {kind[:120]!r}")
        if kind in entity:
            raise ValueError(f"{kind} is in the entity twice")
        if name == "":
            raise ValueError(f"the name of a {kind} is empty; that of the default is null")
        if name is not None and len(name) > NAME_LENGTH_MAX:
            raise ValueError(f"the name of a {kind} has more than {NAME_LENGTH_MAX} characters")
        entity[kind] = name
    if not entity:
        raise ValueError("the entity is empty")
    if IP in entity:
        if len(entity) > 1:
            raise ValueError(f"{IP} goes with no other entity type")
        address = entity[IP]
        if address is not None:
            entity[IP] = address_of(address)
    return tuple(sorted(entity.items()))


def address_of(text: str) -> str:
    """The address as connections are known by it. ValueError if it's none, or has a scope."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text[:120]!r} is no ip address") from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"{text[:120]!r} has a scope, which addresses of clients haven't")
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
    return str(address)


def check_key(entity: Entity, key: str) -> None:
    """ValueError if such an entity has no such quota."""
    keys = IP_KEYS if entity[0][0] == IP else CLIENT_KEYS
    if key not in keys:
        raise ValueError(f"there is no quota {key[:120]!r} here, but {', '.join(keys)}")


def checked_value(key: str, value: float) -> float:
    """The value of a quota as it's kept. ValueError if it can't be one."""
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{key} must be a number above 0")
    largest = _WHOLE_MAX.get(key)
    if largest is not None and (value != math.floor(value) or value > largest):
        raise ValueError(f"{key} must be a whole number of at most {largest}")
    return float(value)


class QuotaTable:
    """All quotas that are set: part of the replicated metadata, and changed by it alone."""

    def __init__(self) -> None:
        self._values: dict[Entity, Values] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, entity: Entity) -> Values:
        """What is set for this very entity; nothing if it has no quotas."""
        return self._values.get(entity, _NOTHING)

    def set(self, entity: Entity, values: Values) -> None:
        """These are all quotas of the entity now."""
        self._counts.subtract(self._values.pop(entity, _NOTHING).keys())
        if values:
            self._values[entity] = dict(values)
            self._counts.update(values.keys())

    def anybody_has(self, key: str) -> bool:
        """Whether there is a quota with that key."""
        return self._counts[key] > 0

    def items(self) -> Iterable[tuple[Entity, Values]]:
        """Each entity that has quotas, and these."""
        return self._values.items()

    def in_order(self) -> list[tuple[Entity, Values]]:
        """The same in an order that is the same for equal tables."""
        return sorted(self._values.items(), key=lambda item: in_order(item[0]))


def in_order(entity: Entity) -> list[tuple[str, str]]:
    """By this entities are sorted: the default comes before all that have names."""
    return [(kind, name or "") for kind, name in entity]


class Rate:
    """How much came in the last eleven seconds, in windows of one."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        # Each of: when it began, when something came last, how much came.
        self._windows: deque[list[float]] = deque(maxlen=WINDOWS + 1)

    def record(self, amount: float, now_s: float) -> None:
        """So much comes now."""
        windows = self._windows
        if windows:
            window = windows[-1]
            if now_s - window[0] < WINDOW_S:
                window[1] = now_s
                window[2] += amount
                return
        windows.append([now_s, now_s, amount])

    @property
    def last_s(self) -> float:
        """When something came last."""
        return self._windows[-1][1] if self._windows else -math.inf

    def take_back(self, amount: float, now_s: float) -> None:
        """It didn't come after all; `now_s` is when `record` was told of it."""
        self.record(-amount, now_s)

    def span_s(self, now_s: float) -> float:
        """The time that is counted with: ten seconds at least, and what has passed of the last."""
        windows = self._windows
        while windows and now_s - windows[0][1] >= _KEPT_S:
            windows.popleft()
        passed_s = now_s - windows[0][0] if windows else 0.0
        full = passed_s // WINDOW_S
        if full < WINDOWS - 1:
            passed_s += (WINDOWS - 1 - full) * WINDOW_S
        return passed_s

    def total(self, now_s: float) -> float:
        """What counts still."""
        self.span_s(now_s)
        return sum(window[2] for window in self._windows)

    def over_s(self, limit: float, now_s: float) -> float:
        """For how long nothing more may come until the rate is at the limit; 0: it isn't over."""
        span_s = self.span_s(now_s)
        rate = self.total(now_s) / span_s
        return (rate - limit) / limit * span_s if rate > limit else 0.0


class Bucket:
    """Tokens that come at a rate, as many as eleven seconds bring at most (KIP-599).

    Whatever comes while there are any is let through, however much it is, and paid back.
    """

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._at_s = -math.inf

    def _refill(self, limit: float, now_s: float) -> None:
        burst = limit * _KEPT_S
        if self._at_s == -math.inf:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + limit * (now_s - self._at_s))
        self._at_s = now_s

    def over_s(self, limit: float, now_s: float) -> float:
        """How long it takes until there are tokens; 0: now."""
        self._refill(limit, now_s)
        return max(0.0, -self._tokens / limit)

    def record(self, amount: float, limit: float, now_s: float) -> None:
        """Takes so many tokens, whether they are there or not."""
        self._refill(limit, now_s)
        self._tokens = min(limit * _KEPT_S, self._tokens - amount)


_Counted = tuple[str | None, str | None]
"""Who is counted together: all of this user and client id; None stands for all."""


def shortened(user: str, client_id: str | None) -> tuple[str, str]:
    """No quota has a longer name, so what is cut off can't matter, but it would take memory."""
    return user[: NAME_LENGTH_MAX + 1], (client_id or "")[: NAME_LENGTH_MAX + 1]


def _look_up(
    quotas: QuotaTable, key: str, user: str, client_id: str
) -> tuple[float, _Counted] | None:
    """The first of Kafka's eight levels that there is, and who is counted together."""
    if not quotas.anybody_has(key):
        return None
    both, users, clients = (user, client_id), (user, None), (None, client_id)
    levels: tuple[tuple[Entity, _Counted], ...] = (
        (((CLIENT_ID, client_id), (USER, user)), both),
        (((CLIENT_ID, None), (USER, user)), both),
        (((USER, user),), users),
        (((CLIENT_ID, client_id), (USER, None)), both),
        (((CLIENT_ID, None), (USER, None)), both),
        (((USER, None),), users),
        (((CLIENT_ID, client_id),), clients),
        (((CLIENT_ID, None),), clients),
    )
    for entity, counted in levels:
        value = quotas.get(entity).get(key)
        if value is not None:
            return value, counted
    return None


def _look_up_mutations(
    quotas: QuotaTable, user: str, client_id: str | None
) -> tuple[float, _Counted] | None:
    return _look_up(quotas, CONTROLLER_MUTATION_RATE, *shortened(user, client_id))


def mutation_limit(quotas: QuotaTable, user: str, client_id: str | None) -> float | None:
    """How many partitions a second a client may have created and deleted; None: any."""
    found = _look_up_mutations(quotas, user, client_id)
    return None if found is None else found[0]


class Ledger:
    """What clients have used of the quotas with one key."""

    def __init__(self, key: str, quotas: QuotaTable, clients_max: int = CLIENTS_MAX) -> None:
        self.key = key
        self._clients_max = clients_max
        self._quotas = quotas
        self._resolved: dict[tuple[str, str], tuple[float, _Counted] | None] = {}
        self._rates: OrderedDict[_Counted, Rate] = OrderedDict()

    def replace(self, quotas: QuotaTable) -> None:
        """These quotas count from now on, or other ones of the same table; what was used stays."""
        self._quotas = quotas
        self._resolved.clear()

    @property
    def is_empty(self) -> bool:
        """Whether nobody has such a quota."""
        return not self._quotas.anybody_has(self.key)

    def __len__(self) -> int:
        return len(self._rates)

    def limit(self, user: str, client_id: str | None) -> float | None:
        """What counts for this client; None: nothing."""
        found = self._resolve(user, client_id)
        return None if found is None else found[0]

    def _resolve(self, user: str, client_id: str | None) -> tuple[float, _Counted] | None:
        who = shortened(user, client_id)
        try:
            return self._resolved[who]
        except KeyError:
            pass
        found = _look_up(self._quotas, self.key, *who)
        if len(self._resolved) >= self._clients_max:
            self._resolved.clear()
        self._resolved[who] = found
        return found

    def _rate(self, counted: _Counted, now_s: float) -> Rate:
        rates = self._rates
        rate = rates.get(counted)
        if rate is None:
            rate = rates[counted] = Rate()
            for oldest in tuple(islice(rates, _FORGOTTEN_TOGETHER_MAX)):
                if len(rates) <= self._clients_max and now_s - rates[oldest].last_s < _KEPT_S:
                    break
                if oldest != counted:
                    del rates[oldest]
        else:
            rates.move_to_end(counted)
        return rate

    def record(self, user: str, client_id: str | None, amount: float, now_s: float) -> float:
        """Counts `amount`; for how many seconds the client has to wait now."""
        found = self._resolve(user, client_id)
        if found is None:
            return 0.0
        rate = self._rate(found[1], now_s)
        rate.record(amount, now_s)
        return rate.over_s(found[0], now_s)

    def record_if_within(
        self, user: str, client_id: str | None, amount: float, now_s: float
    ) -> float:
        """Counts `amount` unless that is over the quota; for how many seconds to wait then.

        What is too much for any eleven seconds is let through when nothing else counts in them: it
        could wait for ever, and in Kafka it does.
        """
        found = self._resolve(user, client_id)
        if found is None:
            return 0.0
        rate = self._rate(found[1], now_s)
        is_alone = rate.total(now_s) <= 0
        rate.record(amount, now_s)
        over_s = rate.over_s(found[0], now_s)
        if not over_s or is_alone:
            return 0.0
        rate.take_back(amount, now_s)
        return over_s


class MutationLedger:
    """What clients have had changed of their `controller_mutation_rate`, in buckets."""

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._buckets: OrderedDict[_Counted, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(
        self,
        quotas: QuotaTable,
        user: str,
        client_id: str | None,
        amount: float,
        now_s: float,
        *,
        strict: bool,
    ) -> tuple[bool, float]:
        """Takes so many tokens; whether they were given, and for how many seconds to wait.

        Nothing is given to a `strict` client that has to wait, another one gets them anyway.
        """
        found = _look_up_mutations(quotas, user, client_id)
        if found is None:
            return True, 0.0
        limit, counted = found
        bucket = self._bucket(counted)
        over_s = bucket.over_s(limit, now_s)
        if strict and over_s > 0:
            return False, over_s
        bucket.record(amount, limit, now_s)
        return True, 0.0 if strict else bucket.over_s(limit, now_s)

    def give_back(
        self, quotas: QuotaTable, user: str, client_id: str | None, amount: float, now_s: float
    ) -> None:
        """They weren't used after all."""
        found = _look_up_mutations(quotas, user, client_id)
        if found is not None and found[1] in self._buckets:
            self._buckets[found[1]].record(-amount, found[0], now_s)

    def _bucket(self, counted: _Counted) -> Bucket:
        buckets = self._buckets
        bucket = buckets.get(counted)
        if bucket is None:
            bucket = buckets[counted] = Bucket()
            if len(buckets) > self._clients_max:
                buckets.popitem(last=False)
        else:
            buckets.move_to_end(counted)
        return bucket

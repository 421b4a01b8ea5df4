"""Who may connect to a broker: slots, rates, limits of addresses (KIP-402, KIP-612)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.core.connection_quotas import (
    ADDRESSES_MAX,
    UNLIMITED,
    WAIT_MAX_S,
    AddressRates,
    ConnectionLimits,
    ConnectionQuotas,
    Limits,
)
from kraftpy.core.quotas import CONNECTION_CREATION_RATE, IP, QuotaTable

IN, OUT = "IN", "OUT"
HOST = "192.0.2.1"


def quotas_of(quotas: Callable[[], QuotaTable] = QuotaTable, **limits: Any) -> ConnectionQuotas:
    return ConnectionQuotas(ConnectionLimits(**limits), quotas)


def table_of(quotas: dict[str | None, float]) -> QuotaTable:
    """By address; None is the default."""
    table = QuotaTable()
    for address, rate in quotas.items():
        table.set(((IP, address),), {CONNECTION_CREATION_RATE: rate})
    return table


def come(quotas: ConnectionQuotas, listener: str, times: int, now_s: float = 0.0) -> list[float]:
    return [quotas.arrive(listener, now_s) for _ in range(times)]


# -- slots


def test_without_limits_nobody_waits() -> None:
    quotas = quotas_of()
    for number in range(1000):
        assert quotas.arrive(IN, 0.0) == 0.0
        assert quotas.has_slot(IN)
        assert quotas.refusal(IN, HOST, 0.0) is None
        quotas.enter(IN, HOST)
        assert (quotas.total, quotas.of_address(HOST), quotas.excess) == (number + 1, number + 1, 0)
    for _ in range(1000):
        quotas.leave(IN, HOST)
    assert (quotas.total, quotas.addresses) == (0, 0)


def test_a_listener_has_slots_of_its_own_beside_the_brokers() -> None:
    quotas = quotas_of(broker=Limits(3), listeners={OUT: Limits(2)})
    for _ in range(2):
        assert quotas.has_slot(OUT)
        quotas.enter(OUT, HOST)
    assert not quotas.has_slot(OUT)
    assert quotas.what_is_full(OUT) == "listener.name.out.max.connections=2"
    assert quotas.has_slot(IN)
    quotas.enter(IN, HOST)
    assert not quotas.has_slot(IN)
    assert quotas.what_is_full(IN) == "max.connections=3"
    quotas.leave(OUT, HOST)
    assert quotas.has_slot(IN)
    assert quotas.has_slot(OUT)


def test_the_listener_of_other_brokers_takes_what_the_broker_has_not() -> None:
    quotas = quotas_of(broker=Limits(1, 1), listeners={IN: Limits(2)}, exempt=IN)
    quotas.enter(OUT, HOST)
    assert not quotas.has_slot(OUT)
    assert quotas.has_slot(IN)
    quotas.enter(IN, HOST)
    assert quotas.excess == 1
    quotas.enter(IN, HOST)
    assert not quotas.has_slot(IN)  # its own limit counts for it, too
    assert quotas.excess == 2
    assert come(quotas, IN, 1000) == [0.0] * 1000
    assert quotas.arrive(OUT, 0.0) == 0.0  # that those came doesn't count
    quotas.leave(OUT, HOST)
    quotas.leave(IN, HOST)
    assert quotas.excess == 0


# -- rates


def test_what_comes_too_fast_waits_until_the_rate_is_what_it_may_be() -> None:
    """As if ten seconds had passed at least: so many come at once, and then one at a time."""
    quotas = quotas_of(broker=Limits(rate=10))
    assert come(quotas, IN, 100) == [0.0] * 100
    assert quotas.arrive(OUT, 0.0) == pytest.approx(0.1)
    assert quotas.arrive(IN, 0.1) == pytest.approx(0.1, abs=0.02)
    assert quotas.what_is_fast(IN) == "max.connection.creation.rate=10"
    assert quotas.arrive(IN, 20.0) == 0.0


def test_the_longer_wait_counts_and_none_is_longer_than_a_second() -> None:
    quotas = quotas_of(broker=Limits(rate=5), listeners={OUT: Limits(rate=1)})
    assert come(quotas, OUT, 10) == [0.0] * 10
    assert quotas.arrive(OUT, 0.0) == pytest.approx(1.0)
    assert quotas.arrive(OUT, 0.0) == WAIT_MAX_S
    assert quotas.what_is_fast(OUT) == "listener.name.out.max.connection.creation.rate=1"
    assert quotas.arrive(IN, 0.0) == 0.0
    assert come(quotas_of(broker=Limits(rate=0)), IN, 2) == [WAIT_MAX_S] * 2


def test_a_listeners_rate_holds_up_that_of_other_brokers() -> None:
    quotas = quotas_of(broker=Limits(rate=1000), listeners={IN: Limits(rate=1)}, exempt=IN)
    assert come(quotas, IN, 10) == [0.0] * 10
    assert quotas.arrive(IN, 0.0) > 0
    assert quotas.what_is_fast(IN) == "listener.name.in.max.connection.creation.rate=1"


def test_limits_change_while_connections_are_there() -> None:
    quotas = quotas_of()
    for _ in range(5):
        quotas.enter(IN, HOST)
    quotas.limits = ConnectionLimits(broker=Limits(3))
    assert (quotas.excess, quotas.has_slot(IN)) == (2, False)
    quotas.limits = ConnectionLimits(broker=Limits(6, UNLIMITED))
    assert (quotas.excess, quotas.has_slot(IN)) == (0, True)


# -- addresses


def test_an_address_has_so_many_and_some_have_other_numbers() -> None:
    quotas = quotas_of(per_ip=2, overrides={"192.0.2.9": 3, "192.0.2.8": 0})
    for address, most in ((HOST, 2), ("192.0.2.9", 3), ("192.0.2.8", 0), ("2001:db8::1", 2)):
        for _ in range(most):
            assert quotas.refusal(IN, address, 0.0) is None
            quotas.enter(IN, address)
        refusal = quotas.refusal(OUT, address, 0.0)
        assert refusal is not None
        assert refusal.delay_s == 0.0
        key = "max.connections.per.ip"
        own = address in quotas.limits.overrides
        assert refusal.limit == (f"{key}.overrides={address}:{most}" if own else f"{key}={most}")
    quotas.leave(IN, HOST)
    assert quotas.refusal(OUT, HOST, 0.0) is None


def test_who_connects_too_fast_from_one_address_is_refused_late() -> None:
    table = table_of({None: 1, HOST: 2})
    quotas = quotas_of(lambda: table, broker=Limits(rate=3))
    for number in range(50):
        quotas.arrive(IN, 0.0)
        refusal = quotas.refusal(IN, HOST, 0.0)
        assert (refusal is None) == (number < 20)
    assert refusal is not None
    assert refusal.limit == "connection_creation_rate=2 a second"
    assert refusal.delay_s == pytest.approx(0.5)
    # Those that were refused count for nobody: of the broker's 30 at once ten are left.
    assert come(quotas, OUT, 10) == [0.0] * 10
    assert quotas.arrive(OUT, 0.0) > 0
    assert quotas.refusal(IN, HOST, 0.6) is None
    assert quotas.refusal(IN, "192.0.2.2", 0.0) is None


def test_rates_of_addresses_change() -> None:
    table = QuotaTable()
    found = AddressRates(lambda: table)
    assert found.over_s(HOST, 0.0) == 0.0
    assert len(found) == 0  # nothing is kept of who has no limit
    table = table_of({None: 1, HOST: 100})
    assert [found.limit(HOST), found.limit("192.0.2.2")] == [100, 1]
    assert [found.over_s(HOST, 0.0) for _ in range(50)] == [0.0] * 50
    table.set(((IP, HOST),), {})
    assert found.over_s(HOST, 0.0) > 0
    table.set(((IP, None),), {})
    table.set((("user", "alice"),), {"producer_byte_rate": 1.0})
    assert found.limit(HOST) is None
    assert found.over_s("192.0.2.2", 11.0) == 0.0
    assert len(found) == 0


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    table = table_of({None: 1})
    found = AddressRates(lambda: table, addresses_max=100)
    slow = "198.51.100.1"
    for _ in range(10):
        assert found.over_s(slow, 0.0) == 0.0
    for number in range(10_000):
        assert found.over_s(f"2001:db8::{number:x}", 0.0) == 0.0
        assert len(found) <= 100
        if number % 50 == 0:  # who goes on isn't forgotten, and gains nothing by the others
            assert found.over_s(slow, 0.0) > 0
    assert found.over_s(HOST, 11.0) == 0.0
    assert len(found) == 1  # what counts no more is forgotten anyhow
    assert AddressRates()._addresses_max == ADDRESSES_MAX


def test_addresses_that_were_idle_are_forgotten_some_at_a_time() -> None:
    """To forget ten thousand in one go would hold up the loop."""
    table = QuotaTable()
    table.set(((IP, None),), {CONNECTION_CREATION_RATE: 10.0})
    found = AddressRates(lambda: table)
    for number in range(300):
        found.over_s(f"2001:db8::{number:x}", 0.0)
    left = []
    for _ in range(3):
        found.over_s(HOST, 11.0)
        left.append(len(found))
    assert left == [173, 45, 1]

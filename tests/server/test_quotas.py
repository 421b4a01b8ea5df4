"""DescribeClientQuotas and AlterClientQuotas, over the wire."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.server.wire import Closed, Wire

Alter = m.AlterClientQuotasRequest
Entry = Alter.EntryData
Component = m.DescribeClientQuotasRequest.ComponentData
EXACT, DEFAULT, ANY = range(3)
INVALID = ErrorCode.INVALID_REQUEST

Parts = tuple[tuple[str, str | None], ...]

_numbers = itertools.count()


@pytest.fixture
def user() -> str:
    return f"user-{next(_numbers)}"


def entry(parts: Parts, **values: float | None) -> Entry:
    return Entry(
        [Alter.EntityData(*part) for part in parts],
        [Alter.OpData(key, value or 0.0, value is None) for key, value in values.items()],
    )


def alter(
    wire: Wire, *entries: Entry, version: int = 1, validate_only: bool = False
) -> dict[Parts, int]:
    answer = wire.call(ApiKey.ALTER_CLIENT_QUOTAS, version, Alter(list(entries), validate_only))
    assert all(bool(each.error_code) == bool(each.error_message) for each in answer.entries)
    found = {
        tuple((part.entity_type, part.entity_name) for part in each.entity): each.error_code
        for each in answer.entries
    }
    assert len(found) == len(answer.entries)
    return found


def describe(
    wire: Wire, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[Parts, dict[str, float]]:
    request = m.DescribeClientQuotasRequest([Component(*each) for each in components], strict)
    answer = wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)
    assert answer.error_code == 0, answer.error_message
    return {
        tuple((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in answer.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(wire: Wire, user: str, version: int) -> None:
    alone: Parts = (("user", user),)
    both: Parts = (("user", user), ("client-id", "app"))
    kept: Parts = (("client-id", "app"), ("user", user))
    answers = alter(
        wire,
        entry(alone, producer_byte_rate=1024.0, request_percentage=12.5),
        entry(both, consumer_byte_rate=2048.0, controller_mutation_rate=0.5),
        version=version,
    )
    assert answers == {alone: 0, both: 0}
    of_user = ("user", EXACT, user)
    assert describe(wire, of_user, version=version) == {
        alone: {"producer_byte_rate": 1024, "request_percentage": 12.5},
        kept: {"consumer_byte_rate": 2048, "controller_mutation_rate": 0.5},
    }
    changed = entry(alone, producer_byte_rate=None, request_percentage=50.0)
    assert alter(wire, changed, version=version) == {alone: 0}
    assert describe(wire, of_user, strict=True) == {alone: {"request_percentage": 50}}
    gone = entry(both, consumer_byte_rate=None, controller_mutation_rate=None)
    assert alter(wire, gone, entry(alone, request_percentage=None)) == {alone: 0, both: 0}
    assert describe(wire, of_user) == {}


def test_filters_find_by_name_by_default_and_any(wire: Wire, user: str) -> None:
    entities: list[Parts] = [
        (("client-id", "f"), ("user", user)),
        (("client-id", None), ("user", user)),
        (("user", user),),
        (("client-id", "f"),),
        (("ip", "10.1.2.3"),),
        (("ip", None),),
    ]
    clients, addresses = entities[:4], entities[4:]
    alter(wire, *(entry(each, request_percentage=7.0) for each in clients))
    alter(wire, *(entry(each, connection_creation_rate=7.0) for each in addresses))
    try:
        of_user = ("user", EXACT, user)
        assert set(describe(wire, of_user)) == set(entities[:3])
        assert set(describe(wire, of_user, strict=True)) == {entities[2]}
        assert set(describe(wire, of_user, ("client-id", ANY, None))) == set(entities[:2])
        assert set(describe(wire, of_user, ("client-id", DEFAULT, None))) == {entities[1]}
        of_client = ("client-id", EXACT, "f")
        assert set(describe(wire, of_client)) == {entities[0], entities[3]}
        assert set(describe(wire, of_client, strict=True)) == {entities[3]}
        assert set(describe(wire, ("ip", ANY, None), strict=True)) == set(addresses)
        assert set(describe(wire, ("ip", EXACT, "::ffff:10.1.2.3"))) == {addresses[0]}
        assert set(describe(wire, ("ip", DEFAULT, None))) == {addresses[1]}
        assert set(describe(wire, ("ip", EXACT, "somewhere"))) == set()
        assert set(entities) <= set(describe(wire))
        assert describe(wire, strict=True) == {}
    finally:
        alter(wire, *(entry(each, request_percentage=None) for each in clients))
        alter(wire, *(entry(each, connection_creation_rate=None) for each in addresses))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([Component("house", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([Component("", 0, "a")], INVALID),
        ([Component("user", 0, "a"), Component("user", 0, "b")], INVALID),
        ([Component("user", 7, "a")], INVALID),
        ([Component("user", 0, None)], INVALID),
        ([Component("user", 1, "a")], INVALID),
        ([Component("ip", 2, None), Component("user", 2, None)], INVALID),
    ],
)
def test_filters_that_nothing_could_match_are_refused(
    wire: Wire, version: int, components: list[Component], code: ErrorCode
) -> None:
    request = m.DescribeClientQuotasRequest(components, strict=True)
    answer = wire.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request)
    assert answer.error_code == code, answer.error_message
    assert answer.entries is None


@pytest.mark.parametrize(
    ("parts", "key", "value"),
    [
        *(((("user", "x"),), "producer_byte_rate", each) for each in (math.nan, math.inf, 0.5)),
        *(((("user", "x"),), "request_percentage", each) for each in (math.nan, -1.0, -math.inf)),
        ((("user", "x"),), "request_percentage", 1e-400),
        ((("user", "x"),), "connection_creation_rate", 1.0),
        ((("user", "x"),), "retention.ms", 1.0),
        ((("user", "x"),), "retention.ms", None),
        ((("ip", "10.0.0.1"),), "request_percentage", 1.0),
        ((("ip", "localhost"),), "connection_creation_rate", 1.0),
        ((("ip", "10.0.0.0/8"),), "connection_creation_rate", 1.0),
        ((("ip", "10.0.0.1"), ("user", "x")), "connection_creation_rate", 1.0),
        ((), "request_percentage", 1.0),
        ((("house", "x"),), "request_percentage", 1.0),
        ((("user", ""),), "request_percentage", 1.0),
        ((("user", "n" * 513),), "request_percentage", 1.0),
    ],
)
def test_trap_20_what_is_no_quota_is_refused_and_the_rest_is_done(
    wire: Wire, user: str, parts: Parts, key: str, value: float | None
) -> None:
    """Trap 20 of security, quotas: NaN, inf, 0, -1 and 0.5; each entity is answered by itself."""
    right: Parts = (("user", user),)
    answers = alter(wire, entry(parts, **{key: value}), entry(right, request_percentage=5.0))
    assert answers == {parts: INVALID, right: 0}
    found = describe(wire)
    assert found.pop(right) == {"request_percentage": 5}
    assert parts not in found
    alter(wire, entry(right, request_percentage=None))


def test_an_entity_comes_once_in_a_request(wire: Wire, user: str) -> None:
    alone: Parts = (("user", user),)
    one, other = entry(alone, request_percentage=1.0), entry(alone, request_percentage=2.0)
    assert alter(wire, one, other) == {alone: INVALID}
    assert describe(wire, ("user", EXACT, user)) == {}
    twisted = entry((("client-id", "c"), ("user", user)), request_percentage=1.0)
    same = entry((("user", user), ("client-id", "c")), request_percentage=2.0)
    assert sorted(alter(wire, twisted, same).values()) == [0, INVALID]
    gone = entry((("user", user), ("client-id", "c")), request_percentage=None)
    assert list(alter(wire, gone).values()) == [0]


def test_validate_only_changes_nothing(wire: Wire, user: str) -> None:
    alone: Parts = (("user", user),)
    quotas: dict[str, Any] = {"producer_byte_rate": 5.0}
    wrong: Parts = (("user", ""),)
    answers = alter(wire, entry(alone, **quotas), entry(wrong, **quotas), validate_only=True)
    assert answers == {alone: 0, wrong: INVALID}
    assert describe(wire, ("user", EXACT, user)) == {}


def test_many_entities_come_in_several_commands(wire: Wire) -> None:
    entities: list[Parts] = [(("client-id", f"many-{number}"),) for number in range(700)]
    answers = alter(wire, *(entry(each, producer_byte_rate=1.0) for each in entities))
    assert answers == dict.fromkeys(entities, 0)
    assert set(entities) <= describe(wire, ("client-id", ANY, None), strict=True).keys()
    answers = alter(wire, *(entry(each, producer_byte_rate=None) for each in entities))
    assert answers == dict.fromkeys(entities, 0)


def test_who_connects_too_fast_from_an_address_is_refused_at_once(
    wire: Wire, broker: Broker
) -> None:
    here: Parts = (("ip", "127.0.0.1"),)
    assert alter(wire, entry(here, connection_creation_rate=1)) == {here: 0}
    with contextlib.ExitStack() as stack:

        def connect_often() -> None:
            for _ in range(30):
                another = stack.enter_context(Wire(broker.host, broker.port))
                describe(another, ("ip", EXACT, "127.0.0.1"))

        with pytest.raises(Closed):
            connect_often()
    assert describe(wire, ("ip", EXACT, "127.0.0.1")) == {here: {"connection_creation_rate": 1}}
    assert alter(wire, entry(here, connection_creation_rate=None)) == {here: 0}
    with Wire(broker.host, broker.port) as another:
        assert describe(another, ("ip", ANY, None)) == {}

"""Quotas of clients: which counts, what can be one, and how long who is over it waits."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    CLIENTS_MAX,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    NAME_LENGTH_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Bucket,
    Entity,
    Ledger,
    MutationLedger,
    QuotaTable,
    Rate,
    check_key,
    checked_value,
    entity_of,
    mutation_limit,
)

KEY = PRODUCER_BYTE_RATE


def table(quotas: dict[Entity, dict[str, float]]) -> QuotaTable:
    made = QuotaTable()
    for entity, values in quotas.items():
        made.set(entity, values)
    return made


class Oracle:
    """Kafka's way: a ring of samples that are reset (`SampledStat`, `Rate`).

    In ticks of 1/1024 s, which floating point adds without an error.
    """

    def __init__(self) -> None:
        self.samples: list[dict[str, float]] = []
        self.current = 0

    def record(self, amount: float, now: int) -> None:
        if not self.samples:
            self.samples.append({"start": now, "last": now, "value": 0.0})
        sample = self.samples[self.current]
        if now - sample["start"] >= 1024:
            self.current = (self.current + 1) % 12
            if self.current >= len(self.samples):
                self.samples.append({})
            sample = self.samples[self.current]
            sample.update(start=now, value=0.0)
        sample["value"] += amount
        sample["last"] = now

    def throttle_ticks(self, limit: float, now: int) -> int:
        for sample in self.samples:
            if now - sample["last"] >= 11 * 1024:
                sample.update(start=now, last=now, value=0.0)
        elapsed = now - min((sample["start"] for sample in self.samples), default=now)
        if elapsed // 1024 < 10:
            elapsed += (10 - elapsed // 1024) * 1024
        value = sum(sample["value"] for sample in self.samples) / (elapsed / 1024)
        return round((value - limit) / limit * elapsed) if value > limit else 0


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.integers(0, 15_000), st.integers(0, 2_000), st.booleans()),
        min_size=1,
        max_size=80,
    ),
    st.sampled_from([1, 50, 400, 5000]),
)
def test_a_rate_is_that_of_kafka(steps: list[tuple[int, int, bool]], limit: int) -> None:
    rate, oracle = Rate(), Oracle()
    now = 7_000_000
    for wait, amount, is_dense in steps:
        now += wait // 50 if is_dense else wait
        rate.record(amount, now / 1024)
        oracle.record(amount, now)
        expected = oracle.throttle_ticks(limit, now)
        assert abs(rate.over_s(limit, now / 1024) * 1024 - expected) <= 1


def test_who_is_over_it_waits_until_it_is_at_the_limit() -> None:
    rate = Rate()
    rate.record(30_000, 100.0)
    over_s = rate.over_s(1000, 100.0)
    assert over_s == pytest.approx(20)
    assert rate.over_s(1000, 100.0 + 10.9) > 0
    assert rate.over_s(1000, 100.0 + 11) == 0, "it's past and gone"


def test_what_is_taken_back_does_not_count() -> None:
    rate = Rate()
    rate.record(500, 100.0)
    rate.record(700, 100.5)
    rate.take_back(700, 100.5)
    assert rate.total(100.9) == 500


LEVELS: list[dict[str, str | None]] = [
    {USER: "u", CLIENT_ID: "c"},
    {USER: "u", CLIENT_ID: None},
    {USER: "u"},
    {USER: None, CLIENT_ID: "c"},
    {USER: None, CLIENT_ID: None},
    {USER: None},
    {CLIENT_ID: "c"},
    {CLIENT_ID: None},
]


def test_the_most_special_of_eight_levels_counts() -> None:
    """Every set of levels, and the first that fits."""
    for chosen in product([False, True], repeat=len(LEVELS)):
        quotas: dict[Entity, dict[str, float]] = {
            entity_of(LEVELS[number].items()): {KEY: number + 1.0}
            for number, there in enumerate(chosen)
            if there
        }
        ledger = Ledger(KEY, table(quotas))
        for user, client_id in product(["u", "v"], ["c", "d"]):
            fitting = [
                number + 1.0
                for number, level in enumerate(LEVELS)
                if chosen[number]
                and level.get(USER, user) in (None, user)
                and level.get(CLIENT_ID, client_id) in (None, client_id)
            ]
            expected = fitting[0] if fitting else None
            assert ledger.limit(user, client_id) == expected, (chosen, user, client_id)


def test_a_level_without_the_key_is_passed_over() -> None:
    quotas: dict[Entity, dict[str, float]] = {
        entity_of([(USER, "u")]): {CONSUMER_BYTE_RATE: 1.0},
        entity_of([(CLIENT_ID, None)]): {KEY: 2.0},
    }
    assert Ledger(KEY, table(quotas)).limit("u", "c") == 2.0


@pytest.mark.parametrize(
    ("entity", "shared"),
    [
        ({USER: "u"}, {("u", "c"), ("u", "d")}),
        ({USER: None}, {("u", "c"), ("u", "d")}),
        ({CLIENT_ID: None}, {("u", "c"), ("v", "c")}),
        ({CLIENT_ID: "c"}, {("u", "c"), ("v", "c")}),
        ({USER: None, CLIENT_ID: None}, {("u", "c")}),
        ({USER: "u", CLIENT_ID: None}, {("u", "c")}),
    ],
)
def test_who_shares_a_quota_shares_what_is_used(
    entity: dict[str, str | None], shared: set[tuple[str, str]]
) -> None:
    ledger = Ledger(KEY, table({entity_of(entity.items()): {KEY: 10.0}}))
    assert ledger.record("u", "c", 1000, 5.0) > 0
    for user, client_id in product(["u", "v"], ["c", "d"]):
        assert (ledger.record(user, client_id, 0, 5.0) > 0) == ((user, client_id) in shared)


def test_a_client_without_an_id_has_that_of_the_default() -> None:
    ledger = Ledger(KEY, table({entity_of([(CLIENT_ID, None)]): {KEY: 10.0}}))
    assert ledger.record("u", None, 1000, 5.0) > 0


def test_what_was_used_outlives_a_change_of_the_quota() -> None:
    entity = entity_of([(USER, "u")])
    ledger = Ledger(KEY, table({entity: {KEY: 100.0}}))
    assert ledger.record("u", "c", 900, 5.0) == 0
    ledger.replace(table({entity: {KEY: 10.0}}))
    assert ledger.record("u", "c", 0, 5.0) > 0
    ledger.replace(QuotaTable())
    assert ledger.is_empty
    assert ledger.record("u", "c", 10**9, 5.0) == 0


def test_what_is_over_it_is_not_counted_if_it_waits() -> None:
    ledger = Ledger(KEY, table({entity_of([(USER, "u")]): {KEY: 100.0}}))
    assert ledger.record_if_within("u", "c", 900, 5.0) == 0
    waits_s = ledger.record_if_within("u", "c", 300, 5.0)
    assert waits_s == pytest.approx(2)
    assert ledger.record_if_within("u", "c", 300, 5.0) == pytest.approx(waits_s)
    assert ledger.record_if_within("u", "c", 100, 5.0) == 0


def test_what_could_wait_for_ever_passes_alone() -> None:
    ledger = Ledger(KEY, table({entity_of([(USER, "u")]): {KEY: 10.0}}))
    assert ledger.record_if_within("u", "c", 5000, 5.0) == 0
    assert ledger.record_if_within("u", "c", 1, 5.0) > 0
    assert ledger.record_if_within("u", "c", 5000, 15.9) > 0
    assert ledger.record_if_within("u", "c", 5000, 16.0) == 0


def test_who_was_idle_is_forgotten_when_another_comes() -> None:
    quotas = table({((CLIENT_ID, None),): {KEY: 100.0}})
    ledger = Ledger(KEY, quotas)
    for number in range(5):
        ledger.record("u", f"early-{number}", 1.0, 50.0)
    ledger.record("u", "early-0", 1.0, 60.0)
    ledger.record("u", "late", 1.0, 60.9)
    assert len(ledger) == 6
    ledger.record("u", "later", 1.0, 61.0)
    assert len(ledger) == 3, "early-0, late, later"


def test_those_who_were_idle_are_forgotten_some_at_a_time() -> None:
    """To forget ten thousand in one go would hold up the loop for 6 to 22 ms."""
    ledger = Ledger(KEY, table({((CLIENT_ID, None),): {KEY: 100.0}}))
    for number in range(20):
        ledger.record("u", f"early-{number}", 1.0, 50.0)
    left = []
    for number in range(4):
        ledger.record("u", f"late-{number}", 1.0, 70.0)
        left.append(len(ledger))
    assert left == [13, 6, 3, 4]


def test_many_invented_client_ids_take_no_more_memory() -> None:
    """Trap 20 of security, quotas: what a client makes up is bounded, in number and in length."""
    ledger = Ledger(KEY, table({entity_of([(CLIENT_ID, None)]): {KEY: 10.0}}), clients_max=50)
    ledger.record("u", "kept", 1000, 5.0)
    for number in range(1000):
        ledger.record("u", f"{number}", 1, 5.0)
        ledger.record("u", "kept", 0, 5.0)
    assert len(ledger) == 50
    assert len(ledger._resolved) <= 50
    assert ledger.record("u", "kept", 0, 5.0) > 0, "who is busy isn't forgotten"
    ledger.record("u", "x" * 30_000, 1, 5.0)
    assert max(len(name or "") for _, name in ledger._rates) == NAME_LENGTH_MAX + 1
    assert CLIENTS_MAX == 10_000


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 0.5, 1.5, 2.0**63]
)
def test_what_is_no_quota_is_refused(value: float) -> None:
    """Trap 20 of security, quotas: NaN passes a test like `value <= 0`."""
    with pytest.raises(ValueError, match=KEY):
        checked_value(KEY, value)
    if value not in (0.5, 1.5, 2.0**63):
        with pytest.raises(ValueError, match=REQUEST_PERCENTAGE):
            checked_value(REQUEST_PERCENTAGE, value)


def test_what_is_one_is_taken() -> None:
    assert checked_value(REQUEST_PERCENTAGE, 0.5) == 0.5
    assert checked_value(KEY, 1) == 1.0
    assert checked_value(CONNECTION_CREATION_RATE, 2**31 - 1) == 2**31 - 1
    with pytest.raises(ValueError, match="whole"):
        checked_value(CONNECTION_CREATION_RATE, 2**31)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("house", "a")],
        [("", "a")],
        [(USER, "")],
        [(CLIENT_ID, "")],
        [(IP, "")],
        [(USER, "a"), (USER, "b")],
        [(IP, "127.0.0.1"), (USER, "a")],
        [(IP, None), (CLIENT_ID, None)],
        [(IP, "localhost")],
        [(IP, "127.1")],
        [(IP, "127.0.0.0/8")],
        [(IP, "fe80::1%eth0")],
        [(USER, "n" * (NAME_LENGTH_MAX + 1))],
    ],
)
def test_what_is_no_entity_is_refused(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        entity_of(parts)


def test_an_entity_is_the_same_however_it_is_written() -> None:
    assert entity_of([(USER, "a"), (CLIENT_ID, None)]) == entity_of(
        [(CLIENT_ID, None), (USER, "a")]
    )
    assert entity_of([(IP, "2001:DB8:0:0::1")]) == ((IP, "2001:db8::1"),)
    assert entity_of([(IP, "::ffff:10.0.0.1")]) == ((IP, "10.0.0.1"),)
    assert entity_of([(IP, None)]) == ((IP, None),)


def test_each_entity_has_quotas_of_its_own() -> None:
    client, address = entity_of([(USER, "a")]), entity_of([(IP, None)])
    for key in CLIENT_KEYS:
        check_key(client, key)
        with pytest.raises(ValueError, match=CONNECTION_CREATION_RATE):
            check_key(address, key)
    check_key(address, CONNECTION_CREATION_RATE)
    for key in (CONNECTION_CREATION_RATE, "", "retention.ms"):
        with pytest.raises(ValueError, match="there is no quota"):
            check_key(client, key)


def test_a_bucket_lets_a_burst_through_and_has_it_paid_back() -> None:
    bucket = Bucket()
    assert bucket.over_s(2, 5.0) == 0
    bucket.record(22, 2, 5.0)
    assert bucket.over_s(2, 5.0) == 0, "all of eleven seconds are there"
    bucket.record(10, 2, 5.0)
    assert bucket.over_s(2, 5.0) == pytest.approx(5)
    assert bucket.over_s(2, 9.0) == pytest.approx(1)
    assert bucket.over_s(2, 10.0) == 0
    assert bucket.over_s(2, 1000.0) == 0
    bucket.record(23, 2, 1000.0)
    assert bucket.over_s(2, 1000.0) == pytest.approx(0.5), "no more than eleven seconds are saved"


def test_a_strict_client_waits_and_another_one_only_hears_that_it_should() -> None:
    quotas = table({((USER, "a"),): {CONTROLLER_MUTATION_RATE: 2.0}})
    ledger = MutationLedger()

    def take(amount: float, now_s: float, *, strict: bool, user: str = "a") -> tuple[bool, float]:
        return ledger.take(quotas, user, "any", amount, now_s, strict=strict)

    assert take(30, 5.0, strict=True) == (True, 0)
    assert take(1, 5.0, strict=True) == (False, pytest.approx(4))
    assert take(2, 5.0, strict=False) == (True, pytest.approx(5))
    ledger.give_back(quotas, "a", "another", 2, 5.0)
    assert take(1, 8.9, strict=True) == (False, pytest.approx(0.1))
    assert take(1, 9.0, strict=True) == (True, 0)
    assert take(10**6, 9.0, strict=True, user="b") == (True, 0)
    assert len(ledger) == 1
    assert mutation_limit(quotas, "a", None) == 2
    assert mutation_limit(quotas, "b", None) is None


def test_buckets_of_invented_clients_take_no_more_memory() -> None:
    quotas = table({((CLIENT_ID, None),): {CONTROLLER_MUTATION_RATE: 1.0}})
    ledger = MutationLedger(clients_max=3)
    for number in range(10):
        ledger.take(quotas, "u", f"{number}", 1, 0.0, strict=True)
    assert len(ledger) == 3

"""Instruments: what they count, and that a topic's end takes nothing from the sums."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.metrics.instruments import TIMED_EVERY, ApiNumbers, Histogram, Traffic


def test_an_observation_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.100001, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5
    assert abs(histogram.sum - 8.250001) < 1e-9


def test_a_topic_is_found_by_name_and_by_id() -> None:
    traffic = Traffic()
    numbers = traffic.topic("t", b"id")
    assert traffic.topic("t", b"id") is numbers
    traffic.read(b"id", [b"12", b"3"], 0)
    traffic.read("t", [], 6)
    assert (numbers.sent_bytes, numbers.failed_reads) == (3, 1)
    traffic.read("unknown", [b"1"], 0)
    assert [name for name, _ in traffic.by_name()] == ["t"]


def test_what_was_replicated_of_a_topic_that_is_gone_still_counts() -> None:
    traffic = Traffic()
    traffic.topic("t", b"1").replication_received_bytes = 10
    traffic.topic("u", b"2").replication_sent_bytes = 5
    traffic.forget("t", b"1")
    traffic.forget("t", b"1")
    assert traffic.replicated_bytes() == (10, 5)
    assert [name for name, _ in traffic.by_name()] == ["u"]


def test_a_new_topic_of_an_old_name_is_not_forgotten_with_the_old_one() -> None:
    traffic = Traffic()
    traffic.topic("t", b"old")
    new = traffic.topic("t", b"new")
    traffic.forget("t", b"old")
    assert list(traffic.by_name()) == [("t", new)]


def test_one_append_of_eight_is_timed_and_each_is_counted() -> None:
    traffic = Traffic()
    numbers = traffic.topic("t", b"1")
    for _ in range(2 * TIMED_EVERY):
        numbers.appended(100, 3, perf_counter() if numbers.batches % TIMED_EVERY == 0 else 0.0)
    assert (numbers.batches, numbers.received_bytes) == (16, 1600)
    assert numbers.received_records == 48
    assert traffic.appends.count == 2


def test_topics_come_and_go_while_they_are_listed() -> None:
    traffic = Traffic()
    for name in ("a", "b", "c"):
        traffic.topic(name, name.encode())
    seen = []
    for name, _ in traffic.by_name():
        seen.append(name)
        traffic.forget("b", b"b")
        traffic.topic("d", b"d")
    assert seen == ["a", "c"]


@given(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.11, 1.0, 1.1, 70.0])))
def test_many_at_once_are_observed_as_one_by_one(values: list[float]) -> None:
    bounds = (0.1, 1.0)
    at_once, one_by_one = Histogram(bounds), Histogram(bounds)
    at_once.observe(0.1)
    one_by_one.observe(0.1)
    for value in values:
        one_by_one.observe(value)
    at_once.observe_all(list(values))
    assert at_once.counts == one_by_one.counts
    assert at_once.sum == pytest.approx(one_by_one.sum)


def test_the_time_of_a_request_is_seen_before_its_kind_is_sorted_in() -> None:
    numbers = ApiNumbers()
    for _ in range(3):
        numbers.took_s.append(0.02)
    assert numbers.duration.count == 3
    numbers.took_s.append(0.02)
    assert numbers.duration.count == 4
    assert numbers.duration.sum == pytest.approx(0.08)

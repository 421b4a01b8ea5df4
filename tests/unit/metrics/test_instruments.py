"""Instruments: what they count, and that a topic's end takes nothing from the sums."""

from __future__ import annotations

import pytest

from kraftpy.metrics.instruments import Histogram, Traffic


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
    traffic.topic("t", b"1").replicated.received_bytes += 10
    traffic.topic("u", b"2").replicated.sent_bytes += 5
    traffic.forget("t", b"1")
    traffic.forget("t", b"1")
    assert (traffic.replicated.received_bytes, traffic.replicated.sent_bytes) == (10, 5)
    assert [name for name, _ in traffic.by_name()] == ["u"]


def test_a_new_topic_of_an_old_name_is_not_forgotten_with_the_old_one() -> None:
    traffic = Traffic()
    traffic.topic("t", b"old")
    new = traffic.topic("t", b"new")
    traffic.forget("t", b"old")
    assert list(traffic.by_name()) == [("t", new)]


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


def test_many_of_a_kind_are_observed_as_one_by_one() -> None:
    together, one_by_one = Histogram((0.1, 1.0)), Histogram((0.1, 1.0))
    for value, times in ((0.1, 1), (0.11, 3), (70.0, 2)):
        together.observe(value, times)
        for _ in range(times):
            one_by_one.observe(value)
    assert together.counts == one_by_one.counts == [1, 3, 2]
    assert together.sum == pytest.approx(one_by_one.sum)

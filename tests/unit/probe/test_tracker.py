"""What became of the probe's messages: lost, late, failed, twice; and that memory is bounded."""

from __future__ import annotations

import pytest

from kraftpy.probe import tracker as tracking
from kraftpy.probe.tracker import Tracker

SLA_S = 5.0


@pytest.fixture
def tracker() -> Tracker:
    return Tracker(SLA_S)


def counts(tracker: Tracker, partition: int = 0) -> dict[str, int]:
    tally = tracker.partitions[partition]
    names = ("produced", "failed", "received", "in_time", "lost", "late", "duplicated")
    return {name: getattr(tally, name) for name in names if getattr(tally, name)}


def test_a_message_that_is_acknowledged_and_arrives(tracker: Tracker) -> None:
    number = tracker.sent(0, 7, 10.0)
    assert tracker.on_its_way(0) == 1
    assert tracker.oldest_pending_s(10.5) == 0.5
    tracker.acknowledged(number, 11.0)
    assert (tracker.on_its_way(0), tracker.settled) == (0, False)
    tracker.arrived(number, 100, 12.0)
    assert tracker.settled
    assert counts(tracker) == {"produced": 1, "received": 1, "in_time": 1}
    assert tracker.brokers[7].produced == 1
    assert tracker.partitions[0].produce.sum == 1.0
    assert tracker.partitions[0].roundtrip.sum == 2.0
    assert tracker.oldest_pending_s(20.0) == 0
    assert not tracker.broken


def test_it_may_arrive_before_its_acknowledgement_does(tracker: Tracker) -> None:
    number = tracker.sent(0, 7, 10.0)
    tracker.arrived(number, 100, 10.2)
    assert not tracker.settled
    tracker.acknowledged(number, 10.3)
    assert tracker.settled
    assert tracker.expire(100.0) == []
    assert counts(tracker) == {"produced": 1, "received": 1, "in_time": 1}


def test_acknowledged_and_not_there_within_the_sla_is_lost_and_told_if_it_comes_late(
    tracker: Tracker,
) -> None:
    lost, late = tracker.sent(0, 7, 10.0), tracker.sent(0, 7, 10.0)
    tracker.acknowledged(lost, 11.0)
    tracker.acknowledged(late, 11.0)
    assert tracker.expire(11.0 + SLA_S) == []
    assert len(tracker.expire(11.1 + SLA_S)) == 2
    assert tracker.expire(100.0) == []
    assert counts(tracker) == {"produced": 2, "lost": 2}
    tracker.arrived(late, 100, 30.0)
    assert counts(tracker) == {"produced": 2, "lost": 2, "late": 1, "received": 1}
    assert tracker.broken == {"roundtrip": 1}
    tracker.arrived(late, 101, 31.0)
    assert counts(tracker)["duplicated"] == 1


def test_the_sla_of_the_round_trip_begins_with_the_acknowledgement_for_loss(
    tracker: Tracker,
) -> None:
    number = tracker.sent(0, 7, 10.0)
    tracker.acknowledged(number, 18.0)  # a failover, say
    assert tracker.expire(18.0 + SLA_S) == []
    tracker.arrived(number, 100, 18.5)
    assert counts(tracker) == {"produced": 1, "received": 1, "in_time": 1}
    assert tracker.broken == {"produce": 1, "roundtrip": 1}


def test_what_nobody_promised_is_not_lost(tracker: Tracker) -> None:
    number = tracker.sent(0, 7, 10.0)
    tracker.failed(number)
    assert tracker.expire(100.0) == []
    tracker.arrived(number, 100, 11.0)  # it was written all the same
    assert counts(tracker) == {"failed": 1, "received": 1, "in_time": 1}
    tracker.arrived(number, 101, 12.0)
    assert counts(tracker)["duplicated"] == 1


def test_arriving_twice_while_the_acknowledgement_is_missing(tracker: Tracker) -> None:
    number = tracker.sent(0, 7, 10.0)
    tracker.arrived(number, 100, 11.0)
    tracker.arrived(number, 101, 11.5)
    assert counts(tracker) == {"received": 1, "in_time": 1, "duplicated": 1}


def test_a_message_that_is_in_its_partition_twice_is_duplicated_though_all_was_well(
    tracker: Tracker,
) -> None:
    number = tracker.sent(0, 7, 10.0)
    tracker.acknowledged(number, 10.1)
    tracker.arrived(number, 100, 10.2)
    tracker.arrived(number, 100, 11.0)  # read again, after a rebalance
    assert counts(tracker) == {"produced": 1, "received": 1, "in_time": 1}
    tracker.arrived(number, 101, 11.0)
    assert counts(tracker) == {"produced": 1, "received": 1, "in_time": 1, "duplicated": 1}
    other = tracker.sent(0, 7, 10.0)
    tracker.arrived(other, 102, 10.2)
    tracker.failed(other)
    tracker.arrived(other, 103, 10.3)
    assert counts(tracker)["duplicated"] == 2


def test_at_the_end_what_is_missing_is_counted(tracker: Tracker) -> None:
    unanswered, acknowledged = tracker.sent(0, 7, 10.0), tracker.sent(1, 8, 10.0)
    tracker.acknowledged(acknowledged, 10.1)
    tracker.give_up()
    assert counts(tracker, 0) == {"failed": 1}
    assert counts(tracker, 1) == {"produced": 1, "lost": 1}
    assert tracker.settled
    tracker.acknowledged(unanswered, 11.0)
    assert counts(tracker, 0) == {"failed": 1}


def test_what_is_gone_is_forgotten_at_last(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "GONE_MAX", 10)
    for _ in range(50):
        tracker.failed(tracker.sent(0, 7, 10.0))
    assert len(tracker._gone) == 10
    assert not tracker._under_way
    tracker.arrived(1, 100, 11.0)  # forgotten: nobody knows whose it was
    assert counts(tracker) == {"failed": 50}
    for _ in range(50):
        number = tracker.sent(0, 7, 10.0)
        tracker.arrived(number, 100, 10.1)
        tracker.acknowledged(number, 10.2)
    assert len(tracker._done) == 10


def test_commits(tracker: Tracker) -> None:
    tracker.committed(3, 0.5)
    tracker.committed(3, 6.0)
    tracker.commit_failed()
    assert (tracker.commits, tracker.commits_in_time, tracker.commits_failed) == (2, 1, 1)
    assert tracker.broken == {"offset_commit": 1}
    assert tracker.commits_by_coordinator[3].count == 2

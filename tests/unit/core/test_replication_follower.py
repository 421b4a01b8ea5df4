"""A follower's view; where it cuts is told in tests/simulation/scenarios/divergence.txt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kraftpy.core.metadata import PartitionState
from kraftpy.core.replication import (
    Following,
    Truncation,
    check_leader_epoch,
    divergence,
    may_begin_anew,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.storage.epochs import LeaderEpochs

EPOCH = 5
STATE = PartitionState(1, EPOCH, 0, (1, 2), (1, 2), (bytes(16), bytes(16)))


class Log:
    def __init__(self, start: int, end: int, *entries: tuple[int, int]) -> None:
        self.log_start_offset = start
        self.log_end_offset = end
        self.leader_epochs = LeaderEpochs(list(entries))


def test_it_asks_for_what_comes_after_its_log() -> None:
    log = Log(0, 8, (2, 0), (4, 5))
    assert Following(STATE, log, 3).fetch_position(log) == (8, 4)


@pytest.mark.parametrize(
    ("epoch", "offset", "accepted"), [(5, 8, True), (4, 8, False), (5, 7, False)]
)
def test_it_takes_the_answer_to_its_last_question_only(
    epoch: int, offset: int, accepted: bool
) -> None:
    log = Log(0, 8, (4, 0))
    assert Following(STATE, log, 3).accepts(log, epoch, offset) is accepted


def test_its_watermark_is_the_leaders_as_far_as_its_log_goes_also_downwards() -> None:
    log = Log(2, 8, (4, 2))
    role = Following(STATE, log, 99)
    assert role.high_watermark == 8
    assert role.appended(log, 5)
    assert role.high_watermark == 5
    assert not role.appended(log, 5)
    assert role.appended(log, 12)
    assert role.high_watermark == 8
    log.log_end_offset = 4
    role.truncated(log)
    assert role.high_watermark == 4


def test_a_late_divergence_is_no_reason_to_cut() -> None:
    log = Log(0, 8, (4, 0))
    role = Following(STATE, log, 3)
    assert role.truncation(log, 4, 6, 0) == Truncation(6, fully=False)
    role.appended(log, 6)
    assert role.truncation(log, 4, 6, 0) is None


def test_it_starts_anew_where_its_log_has_nothing_in_common() -> None:
    log = Log(5, 8, (4, 5))
    role = Following(STATE, log, 6)
    assert role.truncation(log, 4, 3, 0) == Truncation(3, fully=True)
    assert role.restart(log, 20, 30) == Truncation(20, fully=True)
    assert role.restart(log, 0, 6) == Truncation(6, fully=False)
    assert role.restart(log, 0, 4) == Truncation(4, fully=True)
    assert role.restart(log, 8, 30) is None


@pytest.mark.parametrize(
    ("end_offset", "leader_start", "wanted"),
    [
        (6, 5, Truncation(6, fully=False)),
        (6, 6, Truncation(6, fully=True)),
        (4, 6, Truncation(6, fully=True)),
        (2, 2, Truncation(2, fully=False)),
    ],
)
def test_what_nobody_can_compare_any_more_is_given_up(
    end_offset: int, leader_start: int, wanted: Truncation
) -> None:
    """Below the leader's log start there may be another's records, never committed."""
    log = Log(2, 8, (4, 2))
    assert Following(STATE, log, 2).truncation(log, 4, end_offset, leader_start) == wanted


def test_its_log_starts_where_the_leaders_does_but_not_above_its_watermark() -> None:
    log = Log(2, 8, (4, 2))
    role = Following(STATE, log, 6)
    assert role.log_start(log, 4) == 4
    assert role.log_start(log, 7) == 6
    assert role.log_start(log, 1) == 2


def test_epochs_are_fenced_in_both_directions() -> None:
    assert check_leader_epoch(5, 5) is ErrorCode.NONE
    assert check_leader_epoch(-1, 5) is ErrorCode.NONE
    assert check_leader_epoch(4, 5) is ErrorCode.FENCED_LEADER_EPOCH
    assert check_leader_epoch(6, 5) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_reader_whose_epoch_is_unknown_or_gone_is_out_of_range() -> None:
    log = Log(4, 8, (2, 4), (5, 6))
    assert divergence(log, 7, 5) is None
    assert divergence(log, 7, -1) is None
    assert divergence(log, 7, 2) == (2, 6)
    for offset, epoch in ((7, 9), (3, 2), (3, 1)):
        with pytest.raises(KafkaError) as raised:
            divergence(log, offset, epoch)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"leader_epoch": 4}, False),
        ({"leader": 2, "isr": (2, 3)}, False),
        ({"leader": -1, "isr": ()}, False),
        ({"isr": (1, 2)}, False),
        ({"elr": (2,)}, False),
    ],
)
def test_when_a_damaged_replica_may_begin_anew(change: dict[str, Any], may: bool) -> None:
    changes: dict[str, Any] = {"isr": (1,)} | change
    state = replace(STATE, **changes)
    assert may_begin_anew(state, 2, leader_epoch=4) is may

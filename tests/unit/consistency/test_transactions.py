"""What transactions left in the end: sound histories are clean, and each anomaly has its name."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.testing.consistency import WORKLOADS, Verdict
from kraftpy.testing.consistency.checkers.transformed import Source, output, source_of
from kraftpy.testing.consistency.workloads import PLAYS, list_append

from . import transaction_histories as histories
from .transaction_histories import Plant, Story

GROUPS = {"groups": {"a": "orders-a"}}


def judge(workload: str, plant: Plant, options: dict[str, Any] = GROUPS) -> dict[str, Verdict]:
    checkers = WORKLOADS[workload](options)
    for operation in histories.history(plant):
        for checker in checkers:
            checker.observe(operation)
    return {verdict.checker: verdict for each in checkers for verdict in each.verdicts()}


def wrong(workload: str, plant: Plant) -> set[str]:
    return {name for name, each in judge(workload, plant).items() if each.valid is not True}


@pytest.mark.parametrize("workload", ["bank", "list-append"])
def test_silence_on_transactions_that_are_whole(workload: str) -> None:
    assert wrong(workload, histories.sound) == set()


@pytest.mark.parametrize("name", histories.WHOLE)
def test_what_is_not_whole(name: str) -> None:
    verdict = judge("bank", histories.WHOLE[name])[name]
    assert verdict.valid is False
    assert verdict.findings[0].lines
    # A half or a stranger is money that comes from nowhere.
    unbalanced = {"torn", "written-twice", "invented"}
    assert ("sum" in wrong("bank", histories.WHOLE[name])) == (name in unbalanced)


def test_each_has_one_name() -> None:
    for name, plant in histories.WHOLE.items():
        assert wrong("bank", plant) - {"sum"} == {name}


def test_a_half_of_what_nobody_knows_the_end_of() -> None:
    assert wrong("bank", histories.torn_of_unknown_end) == {"torn", "sum"}


def test_a_drain_of_one_reader_is_enough() -> None:
    def one_of_two(story: Story) -> None:
        story.txn(histories.A, histories.B)
        story.drain({"t-0": ["+5 1"], "t-1": ["-5 2"]}, process=1)
        story.drain({"t-0": ["+5 1"], "t-1": []}, process=2)

    assert "torn" in wrong("bank", one_of_two)


def test_a_drain_that_was_not_answered_says_nothing() -> None:
    def unanswered(story: Story) -> None:
        story.txn(histories.A, histories.B)
        story.add(5, "assign", {"t-0": 0, "t-1": 0})
        story.add(5, "poll", None, {"t-0": [[0, "+5 1"]]})
        story.add(5, "drain", None, outcome="info")

    assert wrong("bank", unanswered) == set()


def test_lists_are_parts_of_what_is_drained() -> None:
    def part_of_a_list(story: Story) -> None:
        story.txn(("t-0/3", "3/1"), ("t-0/4", "4/2"))
        story.drain({"t-0": ["3/1"]})

    verdict = judge("list-append", part_of_a_list)["torn"]
    assert verdict.valid is False
    assert "'3/1' of t-0/3 is there, and not '4/2' of t-0/4" in verdict.explanation


def test_what_was_drained_is_the_last_read() -> None:
    """A read that doesn't fit it is found, though nobody else read the list."""

    def read_otherwise(story: Story) -> None:
        story.txn(("t-0/3", "3/1"))
        story.txn(("t-0/3", "3/2"))
        read = [["r", "t-0/3", ["3/2"]]]
        story.add(7, "txn", [["r", "t-0/3", None]], read)
        story.drain({"t-0": ["3/1", "3/2"]})

    assert "incompatible-order" in wrong("list-append", read_otherwise)


def test_silence_on_what_is_transformed_once() -> None:
    assert wrong("transform", histories.transformed_soundly) == set()


@pytest.mark.parametrize("name", histories.TRANSFORMED)
def test_what_is_not_transformed_once(name: str) -> None:
    assert wrong("transform", histories.TRANSFORMED[name]) == {name}


def test_each_group_transforms_everything() -> None:
    options = {"groups": {"a": "orders-a", "b": "orders-b"}}
    verdict = judge("transform", histories.transformed_soundly, options)["untransformed"]
    assert verdict.valid is False
    assert verdict.explanation == "'x' of in-0 was not transformed for b"


def test_an_output_says_what_it_was_made_of() -> None:
    source = Source("grouped", "in-3", 17, "6000.7001")
    assert source_of(output(8002, source)) == source
    for strange in ("", "1", 17, "1 a in-0 x y", "1 a in-0 7", "1 a in-0 ² x"):
        assert source_of(strange) is None


def test_what_list_append_allows_is_what_apache_kafka_shows() -> None:
    options = PLAYS["list-append"].options("x", 60.0)
    assert options["allowed"] == list_append.ALLOWED
    forbidden = judge("list-append", histories.sound, options).keys() - set(list_append.ALLOWED)
    assert forbidden == {
        "G1a",
        "G1c-wr",
        "internal",
        "incompatible-order",
        "duplicate-elements",
        *histories.WHOLE,
    }

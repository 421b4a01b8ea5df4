"""The checker finds what is planted, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.groups.checker import Event, check
from tests.groups.history import MemberStory, Story, read_folder

PARTITIONS = 2
SESSION_TIMEOUT_S = 6.0


def member(at: float, name: str, event: str, **fields: Any) -> Event:
    return {"at": at, "group": "g", "member": name, "event": event, **fields}


def driver(at: float, event: str, **fields: Any) -> Event:
    return {"at": at, "group": "g", "event": event, **fields}


def assigned(
    at: float, name: str, partitions: list[int], *, owned: list[int] | None = None, epoch: int = 1
) -> Event:
    owned = partitions if owned is None else owned
    fields = {"partitions": partitions, "owned": owned, "epoch": epoch, "member_id": f"id-{name}"}
    return member(at, name, "assigned", **fields)


def work(at: float, name: str, number: int, ranges: dict[int, tuple[int, int]]) -> Iterator[Event]:
    """Process and commit offsets, by partition: three moments, 0.1 s apart."""
    for partition, (first, end) in ranges.items():
        yield member(at, name, "processed", partition=partition, first=first, end=end)
    offsets = {partition: end for partition, (_, end) in ranges.items()}
    yield member(at + 0.1, name, "committing", commit=number, offsets=offsets)
    yield member(at + 0.2, name, "committed", commit=number)


def good() -> list[Event]:
    """a has both partitions; b joins and gets the second; a is killed and b has both."""
    return [
        member(1.0, "a", "started", client="x", pid=1),
        assigned(2.0, "a", [0, 1]),
        *work(3.0, "a", 1, {0: (0, 5), 1: (0, 5)}),
        driver(3.5, "read", began=3.4, offsets={0: 5, 1: 5}),
        driver(3.6, "settled", after=1.0, owners={"id-a": [0, 1]}),
        driver(3.7, "moving", what="broker 1 killed"),
        driver(3.9, "moved"),
        member(4.0, "a", "revoked", partitions=[0, 1]),
        assigned(4.1, "b", [1], epoch=2),
        assigned(4.2, "a", [0], epoch=2),
        *work(5.0, "b", 1, {1: (5, 8)}),
        *work(5.5, "a", 2, {0: (5, 9)}),
        driver(6.0, "read", began=5.9, offsets={0: 9, 1: 8}),
        driver(7.0, "killed", member="a"),
        member(13.0, "b", "revoked", partitions=[1]),
        assigned(13.1, "b", [0, 1], epoch=3),
        *work(14.0, "b", 2, {0: (9, 12), 1: (8, 12)}),
        driver(14.5, "settled", after=1.0, owners={"id-b": [0, 1]}),
        driver(15.0, "read", began=14.9, offsets={0: 12, 1: 12}),
        driver(15.5, "written", ends={0: 12, 1: 12}),
        member(16.0, "b", "revoked", partitions=[0, 1]),
        member(16.1, "b", "left"),
    ]


def judge(events: list[Event], *, classic: bool = True) -> list[str]:
    events = sorted(events, key=lambda event: event["at"])
    options = {"partitions": PARTITIONS, "session_timeout_s": SESSION_TIMEOUT_S}
    return [each.kind for each in check(events, classic=classic, **options)]  # type: ignore[arg-type]


def pick(events: list[Event], at: float, name: str | None = None) -> Event:
    (found,) = (e for e in events if e["at"] == at and name in (None, e.get("member")))
    return found


def without(*moments: float) -> list[Event]:
    return [event for event in good() if event["at"] not in moments]


@pytest.mark.parametrize("classic", [True, False])
def test_a_good_history(classic: bool) -> None:
    assert judge(good(), classic=classic) == []


def two_in_a_generation() -> list[Event]:
    events = good()
    pick(events, 4.2)["owned"] = [0, 1]
    return events


def b_before_a_gave_up() -> list[Event]:
    events = good()
    pick(events, 4.0)["at"] = 4.15
    return events


def after_half_a_session() -> list[Event]:
    """b gets what a has, which was killed so late that it must have been a member."""
    events = good()
    pick(events, 7.0)["at"] = 13.5
    return [*events, *work(12.0, "a", 3, {0: (9, 10)})]


def never_revoked() -> list[Event]:
    return without(4.0)


@pytest.mark.parametrize("classic", [True, False])
@pytest.mark.parametrize("plant", [b_before_a_gave_up, after_half_a_session, never_revoked])
def test_double_ownership_at_a_time(plant: Callable[[], list[Event]], classic: bool) -> None:
    assert "double ownership" in judge(plant(), classic=classic)


def test_double_ownership_in_a_generation() -> None:
    assert "double ownership" in judge(two_in_a_generation())
    # The member epochs of KIP-848 are not one number for all.
    assert judge(two_in_a_generation(), classic=False) == []


def test_a_member_that_was_thrown_out_may_learn_it_late() -> None:
    base = [e for e in good() if e["at"] != 7.0]
    lost = member(13.2, "a", "lost", partitions=[0])
    assert judge([*base, lost]) == []
    # Not every client tells that partitions were lost, but it is somebody else afterwards.
    gave_up = member(13.2, "a", "revoked", partitions=[0])
    again = assigned(13.3, "a", [], epoch=3)
    assert "double ownership" not in judge([*base, gave_up, again | {"member_id": "id-new"}])
    # The same member id: it was a member all the time.
    events = [*base, *work(12.0, "a", 3, {0: (9, 10)}), gave_up, again]
    assert "double ownership" in judge(events)


def test_a_silent_member_may_be_killed_before_it_learns() -> None:
    events = good()
    pick(events, 7.0)["at"] = 13.5
    assert judge(events) == []  # its last commit began at 5.6, 7.5 s before b got partition 0


def test_a_zombie_commit() -> None:
    base = without(7.0)
    late = list(work(14.5, "a", 3, {0: (9, 12)}))
    ended = member(15.2, "a", "lost", partitions=[0])
    assert judge([*base, *late, ended]) == ["zombie commit"]
    refused = [*late[:-1], member(14.7, "a", "refused", commit=3, error="ILLEGAL_GENERATION")]
    assert judge([*base, *refused, ended]) == []


def test_a_commit_of_what_a_member_never_had() -> None:
    assert judge([*good(), *work(6.1, "b", 3, {0: (5, 9)})]) == ["zombie commit"]


@pytest.mark.parametrize(
    ("moment", "offsets"),
    [
        (6.0, {0: 9, 1: 4}),  # less than was read before
        (6.0, {0: 9}),  # nothing, after something
        (6.0, {0: 8, 1: 8}),  # less than was acknowledged
        (6.0, {0: 9, 1: -1}),
    ],
)
def test_an_offset_that_is_read_as_less(moment: float, offsets: dict[int, int]) -> None:
    events = good()
    pick(events, moment)["offsets"] = offsets
    assert "went back" in judge(events)


def test_a_read_that_began_before_the_acknowledgement() -> None:
    events = good()
    pick(events, 6.0).update(began=5.65, offsets={0: 5, 1: 8})
    assert judge(events) == []


def test_a_member_that_begins_too_early() -> None:
    events = good()
    next(e for e in events if e["at"] == 14.0 and e["partition"] == 0)["first"] = 8
    assert judge(events) == ["went back"]


def test_a_hole() -> None:
    events = good()
    next(e for e in events if e["at"] == 14.0 and e["partition"] == 0)["first"] = 10
    assert judge(events) == ["skipped", "unprocessed"]


def test_something_unprocessed() -> None:
    events = good()
    pick(events, 15.5)["ends"] = {0: 12, 1: 13}
    assert judge(events) == ["unprocessed"]


def test_processed_by_another_and_later() -> None:
    """All is processed in the end, but it was not yet when it was committed."""
    events = good()
    next(e for e in events if e["at"] == 14.0 and e["partition"] == 0)["first"] = 10
    events.append(member(15.2, "b", "processed", partition=0, first=9, end=10))
    assert judge(events) == ["skipped"]


@pytest.mark.parametrize(
    "event",
    [
        assigned(3.8, "a", [0, 1]),
        member(3.8, "a", "revoked", partitions=[1]),
        member(3.8, "a", "lost", partitions=[0, 1]),
    ],
)
def test_a_needless_rebalance(event: Event) -> None:
    assert "needless rebalance" in judge([*good(), event])


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (driver(14.6, "unsettled", detail="Stable, 1 with 1 partitions"), "unsettled"),
        (driver(14.6, "settled", after=1.0, owners={"id-b": [0]}), "unsettled"),
        (driver(14.6, "settled", after=1.0, owners={"id-b": [0, 1], "id-c": [1]}), "unsettled"),
        (driver(14.6, "ended", member="b", detail="exit 1"), "ended"),
    ],
)
def test_what_the_driver_saw(event: Event, kind: str) -> None:
    assert kind in judge([*good(), event])


@pytest.mark.parametrize("kind", ["settled", "written", "read", "committed"])
def test_a_history_without_what_has_to_be_there(kind: str) -> None:
    assert "unsettled" in judge([event for event in good() if event["event"] != kind])


def test_an_empty_history() -> None:
    assert judge([]) == ["unsettled"]


def test_what_a_member_notes_is_what_is_read(tmp_path: Path) -> None:
    story = MemberStory(tmp_path / "a.jsonl", "g", "a", "x")
    story.assigned([1, 0], 1, "id")
    assert story.process([(0, 0), (0, 1), (1, 0), (0, 2), (7, 0)]) == {0: 3, 1: 1}
    with story.committing({0: 3, 1: 1}, ValueError):
        pass
    story.revoked([1])
    assert story.process([(1, 1), (0, 3), (0, 7)]) == {0: 8}
    with story.committing({0: 8}, ValueError):
        raise ValueError("no")
    written = Story(tmp_path / "driver.jsonl", "g")
    written.note("written", ends={0: 8})
    (tmp_path / "b.jsonl").write_text('{"half": ')  # what kill -9 may leave
    events = read_folder(tmp_path)
    assert [(e["event"], e.get("partition"), e.get("end")) for e in events] == [
        ("started", None, None),
        ("assigned", None, None),
        ("processed", 0, 3),
        ("processed", 1, 1),
        ("committing", None, None),
        ("committed", None, None),
        ("revoked", None, None),
        ("processed", 0, 4),
        ("processed", 0, 8),
        ("committing", None, None),
        ("refused", None, None),
        ("written", None, None),
    ]
    assert events[4]["offsets"] == {0: 3, 1: 1}
    assert events[-1]["ends"] == {0: 8}

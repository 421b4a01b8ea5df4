"""Members of share groups: a history that is sound, and what is found when it is spoiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kraftpy.testing.consistency import WORKLOADS
from kraftpy.testing.consistency.clients import ACCEPT, REJECT, RELEASE, RENEW
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Verdict

Story = list[Operation]

SENDER, READER, LAST = 90, 91, 92
MS = 1_000_000
LOCK_MS = 3_000
LATE_MS = 10_000
OPTIONS = {"lock_ms": LOCK_MS, "limits": {"g": 3}}
RECORDS = 8


def call(
    now: int, process: int, f: str, asked: Any, value: Any, *, took: int = 2, outcome: str = "ok"
) -> Operation:
    """At a moment, in milliseconds."""
    ended = NEVER if took < 0 else (now + took) * MS
    return Operation(now, process, f, outcome, now * MS, ended, asked, value, "", "", "")


def leased(
    now: int,
    process: int,
    first: int,
    last: int,
    number: int = 1,
    *,
    node: int = 1,
    epoch: int = 1,
    link: int = 0,
    took: int = 2,
) -> Operation:
    """By who makes its requests itself."""
    value = {
        "group": "g",
        "runs": {"t-0": [[first, last, number]]},
        "node": node,
        "link": link,
        "epochs": {} if epoch < 0 else {"t-0": epoch},
        "lock_ms": LOCK_MS,
    }
    return call(now, process, "lease", {"group": "g"}, value, took=took)


def polled(
    now: int, process: int, first: int, last: int, number: int, since: int, *, gave_up: bool = False
) -> Operation:
    """By a library, which may have asked for it at any time since then."""
    asked = {"group": "g", "since": since * MS}
    value = {**asked, "runs": {"t-0": [[first, last, number]]}, "gave_up": gave_up}
    return call(now, process, "lease", asked, value)


def silent(now: int, process: int, took: int) -> Operation:
    """A request for records without an answer."""
    asked = {"group": "g"}
    return call(now, process, "lease", asked, asked, took=took, outcome="info")


def holds(now: int, process: int, *, epoch: int = 1, link: int = 0) -> Operation:
    asked = {"group": "g", "link": link}
    return call(now, process, "hold", asked, {**asked, "epochs": {"t-0": epoch}})


def says(
    now: int,
    process: int,
    kind: int,
    offsets: Sequence[int],
    *,
    error: str = "",
    outcome: str = "ok",
    link: int = 0,
) -> Operation:
    asked: dict[str, Any] = {"group": "g", "said": {"t-0": [[offset, kind] for offset in offsets]}}
    if link >= 0:
        asked["link"] = link
    value = {**asked, "errors": {"t-0": error} if error else {}}
    return call(now, process, "acknowledge", asked, value if outcome == "ok" else asked,
                outcome=outcome)  # fmt: skip


def starts(now: int, offset: int, left: int = -1) -> Operation:
    asked = {"group": "g"}
    return call(now, READER, "starts", asked, {**asked, "starts": {"t-0": [offset, left]}})


def ends(now: int, offset: int = RECORDS) -> Operation:
    value = {"group": "g", "ends": {"t-0": offset}}
    return call(now, LAST, "ends", value, value, took=0)


def story() -> Story:
    """1 accepts, releases and rejects; 2 stalls, so that 3 has its records and 4 the last of them.

    The leader moves then: what 4 has is dealt anew, and counts as before.
    """
    sent = [
        call(n, SENDER, "send", [["t-0", f"v{n}"]], [["t-0", f"v{n}", n]], took=1)
        for n in range(RECORDS)
    ]
    return [
        *sent,
        leased(20, 1, 0, 3),
        holds(30, 1),
        starts(35, 0),
        says(40, 1, ACCEPT, [0, 1]),
        says(45, 1, RELEASE, [2]),
        says(50, 1, REJECT, [3]),
        starts(55, 2),
        leased(60, 2, 4, 7),
        holds(2_900, 2),
        leased(3_070, 3, 4, 6, 2),
        leased(3_075, 4, 7, 7, 2),
        says(3_080, 2, ACCEPT, [4, 5, 6, 7], error="INVALID_RECORD_STATE"),
        holds(3_090, 3),
        says(3_095, 3, RENEW, [4, 5, 6]),
        holds(3_100, 4),
        says(3_110, 3, ACCEPT, [4, 5, 6]),
        leased(3_120, 5, 2, 2, 2),
        says(3_125, 5, ACCEPT, [2]),
        starts(3_130, 7),
        leased(3_500, 5, 7, 7, 2, node=2, epoch=2, link=1),
        says(3_510, 5, ACCEPT, [7]),
        ends(3_600),
        starts(3_610, 8),
    ]


def judge(operations: Story) -> dict[str, Verdict]:
    (checker,) = WORKLOADS["share"](OPTIONS)
    for n, operation in enumerate(sorted(operations, key=lambda each: each.ended_ns), 2):
        checker.observe(operation._replace(line=n))
    return {verdict.checker: verdict for verdict in checker.verdicts()}


def wrong(operations: Story) -> set[str]:
    return {name for name, each in judge(operations).items() if each.valid is not True}


def without(*moments: int) -> Story:
    return [each for each in story() if each.invoked_ns not in [moment * MS for moment in moments]]


def test_silence_on_members_of_share_groups() -> None:
    verdicts = judge(story())
    assert {name: each.explanation for name, each in verdicts.items() if not each.valid} == {}
    counts = dict(verdicts["lost"].counts)
    assert counts == {
        "passed": 8,
        "held": 12,
        "done": 8,
        "delivered": 14,
        "starts": 4,
        "logs": 1,
    }


PLANTS: list[tuple[str, Callable[[], Story]]] = [
    # While one has it for certain, another one gets it: in the middle, or at the same time.
    ("leased-twice", lambda: [*story(), leased(100, 3, 4, 4, 2)]),
    ("leased-twice", lambda: [*story(), leased(59, 3, 4, 4, 1, took=9), holds(90, 3)]),
    ("leased-twice", lambda: [*without(3_500), leased(3_096, 5, 7, 7, 3)]),
    # A lease that was renewed lasts for longer.
    (
        "leased-twice",
        lambda: [
            *without(3_070, 3_075),
            says(2_950, 2, RENEW, [4, 5, 6, 7]),
            holds(3_070, 2),
            leased(3_060, 3, 4, 6, 2),
        ],
    ),
    ("done-again", lambda: [*story(), leased(3_550, 3, 0, 0, 2)]),
    ("done-again", lambda: [*story(), leased(3_550, 3, 3, 3, 2)]),
    ("done-again", lambda: [*story(), leased(3_550, 3, 7, 7, 3, node=3, epoch=9)]),
    ("done-again", lambda: [*story(), polled(3_700, 8, 7, 7, 3, since=3_550)]),
    # More often than may be; without what was released; more than anybody has seen.
    ("miscounted", lambda: [*without(3_120), leased(3_120, 5, 2, 2, 4)]),
    ("miscounted", lambda: [*without(3_120), leased(3_120, 5, 2, 2, 0)]),
    ("miscounted", lambda: [*without(3_120), leased(3_120, 5, 2, 2, 1)]),
    ("miscounted", lambda: [*without(3_120), polled(3_120, 5, 2, 2, 1, since=60)]),
    ("miscounted", lambda: [*without(3_120), leased(3_120, 5, 2, 2, 3)]),
    ("miscounted", lambda: [*without(3_120), silent(50, 9, 2_000), leased(3_120, 5, 2, 2, 3)]),
    ("strange-word", lambda: [*story(), says(2_000, 3, ACCEPT, [4])]),
    # Nobody has had it; it was given back, or refused, or not delivered often enough.
    ("lost", lambda: without(3_500, 3_510)),
    ("lost", lambda: [*without(3_510), says(3_510, 5, RELEASE, [7])]),
    ("lost", lambda: [*without(3_125), says(3_125, 5, ACCEPT, [2], error="INVALID_RECORD_STATE")]),
    ("lost", lambda: [*without(3_125), says(3_125, 5, ACCEPT, [2], outcome="fail")]),
    ("lost", lambda: [*without(35), starts(36, 1)]),
    ("lost", lambda: without(20, 40, 45, 50)),
    ("lost", lambda: [*without(3_500, 3_510, 3_610), starts(3_610, 7, 0)]),
    ("start-back", lambda: [*story(), starts(3_620, 7)]),
    ("start-back", lambda: [*story(), starts(60, 1)]),
    ("left-over", lambda: [*without(3_610), starts(3_610, 7)]),
    ("left-over", lambda: [*without(3_610), starts(3_610, 7, 1)]),
]


@pytest.mark.parametrize(("name", "plant"), PLANTS)
def test_what_is_spoiled_is_found(name: str, plant: Callable[[], Story]) -> None:
    verdict = judge(plant())[name]
    assert verdict.valid is False
    assert verdict.findings[0].lines


def test_each_promise_can_be_broken() -> None:
    assert set(judge(story())) == {name for name, _ in PLANTS}


@pytest.mark.parametrize(
    "more",
    [
        # The one before may have been over: nobody looked, its time was, its link or leader was.
        pytest.param([leased(100, 6, 2, 2, 2), leased(110, 7, 2, 2, 3)], id="nobody looked"),
        pytest.param([leased(3_068, 6, 4, 4, 2)], id="its time may be over"),
        pytest.param(
            [leased(100, 6, 2, 2, 2, link=1), holds(120, 6, link=2), leased(110, 7, 2, 2, 3)],
            id="another connection",
        ),
        pytest.param(
            [leased(100, 6, 2, 2, 2), holds(120, 6, epoch=2), leased(110, 7, 2, 2, 3)],
            id="another epoch",
        ),
        pytest.param([leased(100, 6, 4, 4, 2, epoch=2)], id="leased in another epoch"),
        pytest.param([leased(100, 6, 4, 4, 2, epoch=-1)], id="leased in an unknown epoch"),
        pytest.param([leased(100, 6, 4, 4, 2, node=2)], id="leased by another leader"),
        pytest.param([polled(100, 6, 4, 4, 2, since=10)], id="leased who knows when"),
        # Who was told, and when, is what counts of what is done.
        pytest.param([polled(3_700, 8, 7, 7, 3, since=3_400)], id="asked for before it was done"),
        pytest.param([leased(3_509, 8, 7, 7, 3, took=50, node=2, epoch=2)], id="under way"),
        pytest.param([says(3_076, 3, RELEASE, [7])], id="a word that came before the lease"),
    ],
)
def test_what_may_be_sound_is_not_found(more: Story) -> None:
    assert wrong([*story(), *more]) == set()


@pytest.mark.parametrize(
    "word",
    [
        says(3_125, 5, ACCEPT, [2], outcome="info"),
        says(3_125, 5, ACCEPT, [2], error="REQUEST_TIMED_OUT"),
        says(3_125, 5, ACCEPT, [2], error="INVALID_RECORD_STATE", link=-1),  # a library's word
        says(3_125, 5, REJECT, [2]),
    ],
)
def test_what_may_be_done_is_not_lost(word: Operation) -> None:
    assert wrong([*without(3_125), word]) == set()


def test_what_came_to_nobodys_notice_counts() -> None:
    """Its sender gave up; a library did; or that one's member ended."""
    third = [*without(3_120), leased(3_120, 5, 2, 2, 3)]
    assert wrong([*third, silent(100, 9, LOCK_MS)]) == set()
    assert wrong([*third, silent(3_100, 9, -1)]) == set()
    unread = [polled(now, 8, 1, 0, 1, since=3_000) for now in (3_050, 3_100)]
    assert wrong([*third, *unread]) == set()
    goes_on = [*third, *unread, polled(3_650, 8, 1, 0, 1, since=3_000)]
    assert wrong(goes_on) == {"miscounted"}
    assert wrong([*goes_on, polled(3_150, 8, 1, 0, 1, since=3_000, gave_up=True)]) == set()


def test_what_was_delivered_too_often_is_not_lost() -> None:
    """With the limit 3: three times, or twice and once more without an answer for long enough."""
    last = leased(3_127, 6, 2, 2, 3)
    assert wrong([*without(3_125), says(3_126, 5, RELEASE, [2]), last]) == set()
    late = [*without(3_125, 3_130, 3_610), says(3_126, 5, RELEASE, [2]), starts(17_000, 8)]
    assert wrong(late) == {"lost"}
    assert wrong([*late, silent(3_127, 6, LOCK_MS)]) == set()
    assert wrong([*late, silent(3_127, 6, -1)]) == set()
    assert wrong([*late, silent(3_127, 6, LOCK_MS - 100)]) == {"lost"}
    before = 3_122 - LATE_MS - LOCK_MS
    assert wrong([*late, silent(before - 20, 6, LOCK_MS)]) == {"lost"}
    assert wrong([*late, silent(before + 20, 6, LOCK_MS)]) == set()


def test_a_group_may_begin_with_what_it_has_finished() -> None:
    assert wrong([*without(3_610), starts(3_610, 7, 0)]) == set()


def test_who_reads_of_nothing_proves_nothing() -> None:
    (checker,) = WORKLOADS["share"](OPTIONS)
    for verdict in checker.verdicts():
        assert verdict.valid
        assert next(iter(verdict.counts.values())) == 0

"""Events: one line each, bounded, kept for the page, and no more of them than a person can read."""

from __future__ import annotations

import ast
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftpy import events
from kraftpy.events import BURST, EVENTS, KEPT, WINDOW_S, EventLog, emit
from kraftpy.metrics.events import event_frames
from tests.sources import MODULES, text_of, tree_of

log = logging.getLogger("kraftpy.test")


class Clock:
    """In place of `time` in the module: it stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(events, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(events, "_log", EventLog())
    caplog.set_level(logging.INFO)


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call of `emit` in the package."""
    for path in MODULES:
        if "emit(" not in text_of(path):
            continue  # most; to look through the tree of each takes a second
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "emit":
                yield path, node


def test_what_is_emitted_is_in_the_table_with_its_fields_and_the_other_way_round() -> None:
    seen = {"events-suppressed"}
    for path, call in calls():
        name = call.args[2]
        assert isinstance(name, ast.Constant), (path, call.lineno)
        assert name.value in EVENTS, (path, call.lineno)
        fields = tuple(keyword.arg for keyword in call.keywords)
        assert fields == EVENTS[name.value].fields, (path, call.lineno)
        seen.add(name.value)
    assert seen == set(EVENTS)


def test_an_event_is_one_line_of_pairs(caplog: pytest.LogCaptureFixture) -> None:
    emit(log, logging.INFO, "isr-shrunk", partition="orders-3", isr=(1, 2), out=[3])
    assert caplog.messages == ["isr-shrunk partition=orders-3 isr=1,2 out=3"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("größe", "größe"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', r'"say \"no\""'),
        ("back\\slash", r'"back\\slash"'),
        ("line\nforged", r'"line\nforged"'),
        ("\x1b[31m", r'"\u001b[31m"'),
        (None, "-"),
        (True, "true"),
        (7, "7"),
        (0.12345, "0.123"),
        ((), '""'),
        (["a b", "c"], '"a b,c"'),
    ],
)
def test_a_value_can_not_be_taken_for_more_than_one(
    value: events.Value, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    emit(log, logging.INFO, "node-failed", node=1, reason=value)
    assert caplog.messages == [f"node-failed node=1 reason={shown}"]


def test_what_somebody_chose_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    emit(log, logging.INFO, "slow-request", client="x" * 5000, peer=list(range(1000)))
    assert len(caplog.messages[0]) < 500
    assert events.kept()[0].fields["client"] == "x" * events.CLIENT_MAX_LENGTH + "..."


def test_more_of_a_kind_than_a_person_reads_are_counted(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(BURST + 500):
        emit(log, logging.WARNING, "isr-shrunk", partition=f"orders-{number}")
    emit(log, logging.INFO, "topic-created", topic="others")
    emit(logging.getLogger("kraftpy.other"), logging.INFO, "isr-shrunk", partition="x-0")
    assert len(caplog.messages) == BURST + 2
    clock.now_s += WINDOW_S
    emit(log, logging.INFO, "isr-shrunk", partition="orders-0")
    assert caplog.messages[-2:] == [
        "events-suppressed event=isr-shrunk count=500",
        "isr-shrunk partition=orders-0",
    ]
    assert caplog.records[-2].levelname == "WARNING"


def test_what_was_suppressed_is_told_by_the_timer_if_nothing_else_happens(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    timers: list[tuple[float, Callable[[], None]]] = []
    events.flush_with(lambda delay_s, function: timers.append((delay_s, function)))
    for _ in range(BURST + 3):
        emit(log, logging.INFO, "isr-expanded", partition="orders-0")
    ((delay_s, function),) = timers
    assert delay_s == WINDOW_S
    function()
    function()
    assert caplog.messages.count("events-suppressed event=isr-expanded count=3") == 1
    emit(log, logging.INFO, "isr-expanded", partition="orders-0")
    assert len(timers) == 2, "within the window it goes on being suppressed, and is told again"


def closed(peer: str, reason: str, client: str | None = None) -> bool:
    return emit(log, logging.WARNING, "connection-closed", peer=peer, client=client, reason=reason)


def test_of_a_peer_each_cause_has_a_line_a_second(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    written = [closed(f"10.0.0.1:{n}", f"API {n} version 7 isn't supported") for n in range(813)]
    assert sum(written) == 1
    assert closed("10.0.0.1:5", "it stalled")
    assert closed("10.0.0.2:5", "API 999 version 7 isn't supported")
    assert closed("[::1]:5", "API 999 version 7 isn't supported")
    clock.now_s += events.PEER_WINDOW_S
    assert closed("10.0.0.1:6", "API 1 version 7 isn't supported")
    assert caplog.messages[-2] == (
        'events-suppressed event=connection-closed about="10.0.0.1 API" count=812'
    )
    assert len(caplog.messages) == 6
    assert events.kept() == [], "they would push out what matters"


def test_peers_without_number_share_a_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(10_000):
        closed(f"10.0.{number // 250}.{number % 250}:1", "it stalled")
    assert len(caplog.messages) <= events.PEERS_MAX + 1
    assert len(events._log._windows) <= events.PEERS_MAX + 1
    clock.now_s += events.PEER_WINDOW_S
    events.flush()
    for number in range(events.PEERS_MAX):
        assert closed(f"10.1.{number // 250}.{number % 250}:1", "it stalled")


def test_a_clients_name_is_cut_and_escaped(caplog: pytest.LogCaptureFixture) -> None:
    closed("10.0.0.1:1", "it stalled", "\x1b[2J\x9b1m\u2028\n" * 5000)
    (message,) = caplog.messages
    assert message.isprintable()
    assert r'client="\u001b[2J\u009b1m\u2028\n' in message
    assert len(message) < 700


def test_the_last_events_are_kept_whatever_the_level(clock: Clock) -> None:
    quiet = logging.getLogger("kraftpy.quiet")
    quiet.setLevel(logging.ERROR)
    for number in range(KEPT + 50):
        clock.now_s += WINDOW_S
        emit(quiet, logging.INFO, "topic-created", topic=f"t{number}")
    kept = events.kept()
    assert [event.fields["topic"] for event in kept] == [f"t{n}" for n in range(50, KEPT + 50)]
    assert kept[-1].number == KEPT + 50
    assert kept[-1].time_ms == clock.now_s * 1000


def test_they_travel_in_frames_that_fit_a_message(clock: Clock) -> None:
    import msgpack

    from kraftpy.metrics.channel import MESSAGE_MAX_BYTES

    for _ in range(KEPT):
        clock.now_s += WINDOW_S
        emit(log, logging.INFO, "group-member-gone", **dict.fromkeys("abcdef", "團" * 5000))
    frames = list(event_frames())
    assert {kind for kind, _ in frames} == {"events"}
    rows = [row for _, rows in frames for row in rows]
    assert [row[0] for row in rows] == list(range(1, KEPT + 1))
    assert rows[0][2:5] == [logging.INFO, "kraftpy.test", "group-member-gone"]
    assert max(len(msgpack.packb(frame)) for frame in frames) < MESSAGE_MAX_BYTES


def test_the_child_of_a_fork_has_none_of_its_parents() -> None:
    emit(log, logging.INFO, "node-stopping", node=1)
    events.flush_with(lambda delay_s, function: None)
    pid = os.fork()
    if pid == 0:
        os._exit(len(events.kept()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(events.kept()) == 1


def test_a_suppressed_event_costs_little() -> None:
    for _ in range(BURST):
        emit(log, logging.INFO, "isr-shrunk", partition="orders-1")
    began_s = time.perf_counter()
    for _ in range(10_000):
        emit(log, logging.INFO, "isr-shrunk", partition="orders-1", isr=(1, 2), out=(3,))
    assert (time.perf_counter() - began_s) / 10_000 < 50e-6

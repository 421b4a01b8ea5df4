"""The timer queue against a plain dictionary of deadlines."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups import timers as timers_module
from kraftpy.core.groups.timers import Timer, TimerKind, TimerQueue

times = st.integers(0, 20)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 3), times),
        st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("shift"), st.just(0), st.integers(-5, 5)),
        st.tuples(st.just("pop"), st.just(0), times),
    ),
    max_size=40,
)


@given(steps, st.sampled_from([1, 1_000]))
def test_it_is_a_dictionary_of_deadlines(
    steps: list[tuple[str, int, int]], tidy_above: int
) -> None:
    with patch.object(timers_module, "_TIDY_ABOVE_MIN", tidy_above):
        compare(steps)


def compare(steps: list[tuple[str, int, int]]) -> None:
    queue = TimerQueue()
    timers = [Timer(TimerKind.SESSION, "g", str(number)) for number in range(4)]
    deadlines: dict[Timer, int] = {}
    for what, number, time in steps:
        timer = timers[number]
        if what == "set":
            queue.set(timer, time)
            deadlines[timer] = time
        elif what == "cancel":
            queue.cancel(timer)
            deadlines.pop(timer, None)
        elif what == "shift":
            queue.shift(time)
            deadlines = {each: deadline + time for each, deadline in deadlines.items()}
        else:
            while (popped := queue.pop_due(time)) is not None:
                assert deadlines.pop(popped) <= time
                assert popped.deadline_ms is None
            assert all(deadline > time for deadline in deadlines.values())
        assert queue.next_deadline() == min(deadlines.values(), default=None)


def test_putting_a_deadline_off_does_not_grow_the_queue() -> None:
    queue = TimerQueue()
    timer = Timer(TimerKind.SESSION, "g", "m")
    for time in range(10_000):
        queue.set(timer, time)
    assert len(queue._heap) == 1
    assert queue.next_deadline() == 9_999


def test_timers_that_were_stopped_long_before_their_time_are_forgotten() -> None:
    queue = TimerQueue()
    running = Timer(TimerKind.SESSION, "g", "m")
    queue.set(running, 5)
    for number in range(10_000):
        timer = Timer(TimerKind.CONSUMER_REVOCATION, "g", "m")
        queue.set(timer, 2**31 + number)
        queue.cancel(timer)
    assert len(queue._heap) <= 1_001
    assert queue.next_deadline() == 5

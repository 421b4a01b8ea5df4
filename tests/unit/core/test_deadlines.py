"""Deadlines by key, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.coordination.deadlines import Deadlines

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "cancel", "pop", "shift", "clear"]),
        st.integers(0, 5),
        st.integers(0, 100),
    ),
    max_size=60,
)


@given(STEPS)
def test_as_a_dictionary_would(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for what, key, ms in steps:
        if what == "set":
            deadlines.set(key, ms)
            model[key] = ms
        elif what == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        elif what == "pop":
            earliest_ms = min(model.values(), default=ms + 1)
            popped = deadlines.pop_due(ms)
            if earliest_ms > ms:
                assert popped is None
            else:
                assert popped is not None
                assert model.pop(popped) == earliest_ms
        elif what == "shift":
            deadlines.shift(ms)
            model = {each: due_ms + ms for each, due_ms in model.items()}
        elif key == 0:
            assert set(deadlines.clear()) == set(model)
            model.clear()
        assert deadlines.next() == min(model.values(), default=None)
        assert len(deadlines) == len(model)


def test_the_earliest_comes_first() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, ms in (("c", 3), ("a", 9), ("b", 2), ("a", 1)):
        deadlines.set(key, ms)
    assert [deadlines.pop_due(5) for _ in range(4)] == ["a", "b", "c", None]


def test_what_is_over_is_not_kept() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(100_000):
        deadlines.set(number % 3, number)
        deadlines.cancel(number % 5)
    assert len(deadlines._heap) < 2_000

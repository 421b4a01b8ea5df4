"""Operations on registers, each reduced to a condition on the state and its effect.

A register holds a whole number, a text, or None. Every operation of the workloads `offsets` and
`metadata` is a `Step`: it needs the state to be anything, to equal a value, or to differ from one;
and it leaves the state alone or sets it. That is all that the checkers know of them, so reads,
writes, compare-and-set, create, alter and delete are one kind of thing.

A key of `offsets` is group/key and holds the committed offset, None before the first commit; one
of `metadata` is a name and holds its configuration, None while it doesn't exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.shapes import NO_OFFSET

State = int | str | None

ANY, EQUAL, DIFFERENT = range(3)


class Step(NamedTuple):
    """What an operation needs (`needs`, `operand`) and leaves (`sets`, `result`)."""

    needs: int
    operand: State
    sets: bool
    result: State

    def allows(self, state: State) -> bool:
        if self.needs == ANY:
            return True
        return (state == self.operand) == (self.needs == EQUAL)

    def after(self, state: State) -> State:
        return self.result if self.sets else state

    @property
    def is_write(self) -> bool:
        """Sets the state whatever it was."""
        return self.sets and self.needs == ANY


def saw(value: State) -> Step:
    return Step(EQUAL, value, False, None)


def saw_not(value: State) -> Step:
    return Step(DIFFERENT, value, False, None)


def write(value: State) -> Step:
    return Step(ANY, None, True, value)


def change(expected: State, value: State) -> Step:
    """Compare-and-set."""
    return Step(EQUAL, expected, True, value)


def change_unless(excluded: State, value: State) -> Step:
    return Step(DIFFERENT, excluded, True, value)


class Call(NamedTuple):
    """A step in time.

    One that may never take effect (`certain` is false) has an end only if it can't do so later.
    """

    step: Step
    invoked_ns: int
    ended_ns: int
    line: int
    certain: bool


Registers = Mapping[str, Sequence[Call]]
"""The calls of each register, in the order in which they ended."""


def register_calls(operation: Operation) -> Iterator[tuple[str, Call]]:
    """What an operation did, or may have done, to which register.

    A commit without a condition may have been done once more before it was answered: clients send
    it again when its answer is lost, and then it has its effect twice.
    """
    found = register_call(operation)
    if found is not None:
        yield found
        key, call = found
        if call.certain and call.step.is_write:
            yield key, call._replace(certain=False)


def register_call(operation: Operation) -> tuple[str, Call] | None:
    """The register that an operation is about and what it did there; None if that is nothing."""
    reading = _READINGS.get(operation.f)
    if reading is None:
        return None
    key_of, effect_of = reading
    key = key_of(operation.asked)
    line, invoked_ns = operation.line, operation.invoked_ns
    only_reads = operation.f in _READS
    if operation.outcome == "ok":
        step = effect_of(operation.value if only_reads else operation.asked)
        if step is None:
            return None
        return key, Call(step, invoked_ns, operation.ended_ns, line, True)
    if operation.outcome == "fail":
        value = operation.value
        if "saw" in value:
            step = saw(value["saw"])
        elif "saw_not" in value:
            step = saw_not(value["saw_not"])
        else:
            return None
        return key, Call(step, invoked_ns, operation.ended_ns, line, True)
    if only_reads:
        return None
    step = effect_of(operation.asked)
    return None if step is None else (key, Call(step, invoked_ns, NEVER, line, False))


def _offset(value: int) -> State:
    return None if value == NO_OFFSET else value


def _commit(value: dict[str, Any]) -> Step:
    if "expected" in value:
        return change(_offset(value["expected"]), value["offset"])
    return write(value["offset"])


def _group_key(value: dict[str, Any]) -> str:
    return f"{value['group']}/{value['key']}"


def _group(value: dict[str, Any]) -> str:
    group: str = value["group"]
    return group


def _whole(value: dict[str, Any]) -> Step | None:
    """What all partitions show; of a mixture nothing can be said that is true of one register."""
    offsets: list[int] = value["offsets"]
    return saw(_offset(offsets[0])) if len(offsets) == 1 else None


def _name(value: dict[str, Any]) -> str:
    name: str = value["name"]
    return name


_READS = ("fetch", "fetch-all", "describe")
_READINGS: dict[
    str, tuple[Callable[[dict[str, Any]], str], Callable[[dict[str, Any]], Step | None]]
] = {
    "commit": (_group_key, _commit),
    "fetch": (_group_key, lambda value: saw(_offset(value["offset"]))),
    "commit-all": (_group, lambda value: write(value["offset"])),
    "fetch-all": (_group, _whole),
    "create": (_name, lambda value: change(None, value["config"])),
    "alter": (_name, lambda value: change_unless(None, value["config"])),
    "delete": (_name, lambda value: change_unless(None, None)),
    "describe": (_name, lambda value: saw(value["config"])),
}


def step_text(step: Step) -> str:
    """A step as a person reads it."""
    condition = {
        ANY: "",
        EQUAL: f"found {step.operand!r}",
        DIFFERENT: f"found other than {step.operand!r}",
    }[step.needs]
    effect = f"wrote {step.result!r}" if step.sets else ""
    return " and ".join(part for part in (condition, effect) if part)

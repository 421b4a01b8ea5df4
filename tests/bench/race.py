"""Apache Kafka and kraftpy in turn, one row after the other.

Rules:

* Both are up at once and take turns at every row, so that what slows the machine for a while slows
  both. Who goes first changes from round to round.
* A row warms up its own path on both sides first, until three windows agree: a JVM compiles what it
  has run some thousand times, and a cold one is no peer.
* A figure takes `MEASURE_S` of work or more. What happens once at a time (a start, a failover) is
  measured once a round.
* Ratios are taken round by round; the table has their median and spread. Beside a row stands
  what may bound it (`ceiling`), measured in the same turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.bench.figures import CEILINGS, Values
from tests.bench.measure import Round, Say

MEASURE_S = 5.0
WINDOW_S = 2.0
AGREEING = 3
AGREE_WITHIN = 1.1
WINDOWS_MAX = 12

Meter = Callable[[float], Round]
"""Works for so many seconds or a little longer, and says what it has measured."""

Prepared = AbstractContextManager[Meter]


class Row(NamedTuple):
    """Figures that are measured together; the first one says whether the path is warm.

    `on(entrant)` prepares a broker or a quorum for its meter, `ceilings` what may bound it. `once`:
    what can't be repeated at will isn't warmed up.
    """

    figures: tuple[str, ...]
    on: Callable[[Any], Prepared]
    ceilings: Mapping[str, Callable[[], Prepared]] = MappingProxyType({})
    once: bool = False


class Raced(NamedTuple):
    """What a race has measured, by figure; and what went wrong with the rows that are missing."""

    ours: Values
    theirs: Values
    ceilings: dict[str, Values]
    failures: list[str]

    @classmethod
    def nothing(cls) -> Raced:
        """Before the first row."""
        return cls({}, {}, {name: {} for name in CEILINGS}, [])

    def add(self, other: Raced) -> None:
        """Takes in the rows of another part."""
        self.ours.update(other.ours)
        self.theirs.update(other.theirs)
        for name, values in other.ceilings.items():
            self.ceilings[name].update(values)
        self.failures.extend(other.failures)


class Starts(NamedTuple):
    """The figures of a start on a folder that is there and of idle memory; what takes the second.

    They are the one row that each plays alone.
    """

    figures: tuple[str, str]
    idle_memory_mib: Callable[[Any], float]


def is_chosen(figures: Sequence[str], only: Sequence[str]) -> bool:
    """Whether any of these words is in a figure's name, or there are no words."""
    return not only or any(word in figure for word in only for figure in figures)


def warm_up(meter: Meter, figure: str) -> bool:
    """Has it work until the last three windows agree; False if they never do."""
    seen: list[float] = []
    for _ in range(WINDOWS_MAX):
        seen.append(meter(WINDOW_S)[figure])
        last = seen[-AGREEING:]
        if len(last) == AGREEING and max(last) <= AGREE_WITHIN * min(last):
            return True
    return False


def race(rows: Sequence[Row], ours: Any, theirs: Any, rounds: int, say: Say) -> Raced:
    """Plays all rows with two entrants that are up; one that fails is left out."""
    whole = Raced.nothing()
    for row in rows:
        say(f"{', '.join(row.figures)}: warming up")
        try:
            raced = _race_row(row, ours, theirs, rounds, say)
        except Exception as error:
            tails = "\n".join(f"{each.name}:\n{each.log_tail()}" for each in (ours, theirs))
            whole.failures.append(f"{row.figures[0]}: {error}\nlast words of {tails}")
            say(f"{row.figures[0]}: failed")
        else:
            whole.add(raced)
            say(f"{row.figures[0]}: {_ratios(raced, row.figures[0])}")
    return whole


def _race_row(row: Row, ours: Any, theirs: Any, rounds: int, say: Say) -> Raced:
    raced = Raced.nothing()
    with contextlib.ExitStack() as stack:
        sides = [
            (entrant.name, stack.enter_context(row.on(entrant)), values)
            for entrant, values in ((ours, raced.ours), (theirs, raced.theirs))
        ]
        sides += [
            (name, stack.enter_context(ceiling()), raced.ceilings[name])
            for name, ceiling in row.ceilings.items()
        ]
        if not row.once:
            for name, meter, _ in sides:
                if not warm_up(meter, row.figures[0]):
                    say(f"{name} swings: {AGREEING} windows in a row never agreed")
        _take_turns([(meter, values) for _, meter, values in sides], rounds)
    return raced


def _take_turns(sides: Sequence[tuple[Meter, Values]], rounds: int) -> None:
    for number in range(rounds):
        for meter, values in sides[:: -1 if number % 2 else 1]:
            for name, value in meter(MEASURE_S).items():
                values.setdefault(name, []).append(value)


def _ratios(raced: Raced, figure: str) -> str:
    pairs = zip(raced.ours[figure], raced.theirs[figure], strict=True)
    return " ".join(f"{mine / other:.2f}" for mine, other in pairs)


def race_starts(
    starts: Starts, makers: Sequence[Callable[[], Any]], rounds: int, say: Say
) -> Raced:
    """`makers` make the entrants, ours first, each with a new folder; in the end none is up."""
    say(", ".join(starts.figures))
    raced = Raced.nothing()
    sides: list[tuple[Meter, Values]] = []
    for make, values in zip(makers, (raced.ours, raced.theirs), strict=True):
        entrant = make()
        entrant.start()
        entrant.stop()

        def meter(_: float, entrant: Any = entrant) -> Round:
            taken = entrant.start(), starts.idle_memory_mib(entrant)
            entrant.stop()
            return dict(zip(starts.figures, taken, strict=True))

        sides.append((meter, values))
    _take_turns(sides, rounds)
    return raced

"""The search for a linearization of one register's calls.

The method is Wing & Gong's with Lowe's memory of configurations, played forward in time: calls are
linearized just in time, when one of them returns and can't wait any longer. A configuration is
what may be true after the events so far: the state, which calls under way have taken effect, and
which uncertain ones were needed. It is linearizable if some configuration is left at the end.

What keeps that small, without leaving a linearization out:

* A call that only looks is linearized as soon as the state allows it: that costs nothing later.
* A write (it sets the state whatever that was) is made visible only where the next call needs it;
  a visible write can stand right behind all other writes under way, which nobody ever sees then.
  These are `hidden`: they may count as done, or may yet be made visible.
* A call that sets the state on a condition can hide writes too, if one of them restores the
  condition: chains of writes that end in the state it needs are tried whenever something is
  left to hide.
* Uncertain calls are used only in such chains, those that have an end before it. Those with the
  same effect take the place of one another, the earliest first.
* Values that no call asks for can't be told apart: they are one, `UNSEEN`.
* Of two configurations with the same state and the same calls done, the one that has hidden more
  and used less is enough.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.checkers.registers import EQUAL, Call, State, Step
from kraftpy.testing.consistency.operations import NEVER

UNSEEN = "a value that no call asks for"
_NONE: frozenset[int] = frozenset()
_CLOCK_EVERY = 200


class Budget:
    """Bounds a search: configurations visited, and seconds on the clock."""

    def __init__(self, configurations: int, seconds: float) -> None:
        self._left = configurations
        self._deadline = time.monotonic() + seconds
        self._until_clock = _CLOCK_EVERY

    def spend(self) -> None:
        """Raises BudgetSpentError when there is nothing left."""
        self._left -= 1
        self._until_clock -= 1
        if self._until_clock <= 0:
            self._until_clock = _CLOCK_EVERY
            if time.monotonic() > self._deadline:
                raise BudgetSpentError("out of time")
        if self._left < 0:
            raise BudgetSpentError("too many configurations")


class BudgetSpentError(Exception):
    """The search was ended without an answer."""


class Config(NamedTuple):
    """What may be true: calls are named by their index."""

    state: State
    done: frozenset[int]
    hidden: frozenset[int]
    used: frozenset[int]


START = Config(None, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class Stuck:
    """No linearization: none of the configurations `before` allows call `at` to have happened.

    `since` is the last moment at which all was known: nothing under way, one state, `known`.
    `after` are the calls that returned after it, in the order of returning, `at` the last of them;
    `uncertain` are those that may have taken effect before `at`.
    """

    at: int
    known: State
    after: Sequence[int]
    uncertain: Sequence[int]
    before: Sequence[State]


def events_of(calls: Sequence[Call]) -> list[tuple[int, int, int]]:
    """(time, 0 for the beginning or 1 for the end, index of the call) in the order of time.

    At one and the same moment beginnings come first: calls that touch count as concurrent.
    """
    events = [(call.invoked_ns, 0, index) for index, call in enumerate(calls)]
    events += [
        (call.ended_ns, 1, index) for index, call in enumerate(calls) if call.ended_ns < NEVER
    ]
    events.sort()
    return events


def find_stuck(calls: Sequence[Call], initial: State, budget: Budget) -> Stuck | None:
    """None if the calls are linearizable. Raises BudgetSpentError."""
    return _Search(calls, initial, budget).run()


class _Search:
    def __init__(self, calls: Sequence[Call], initial: State, budget: Budget) -> None:
        self._calls = calls
        self._steps = _with_unseen([call.step for call in calls])
        self._budget = budget
        self._configs = {START._replace(state=initial)}
        self._looking: set[int] = set()
        """Under way and only looking."""
        self._writing: set[int] = set()
        self._changing: set[int] = set()
        """Under way and setting the state on a condition."""
        self._uncertain: dict[State, dict[Step, list[int]]] = {}
        """By the state that they leave, then alike ones in the order of their beginning."""
        self._known: State = initial
        self._before: set[State] = {initial}
        self._returned: list[int] = []

    def run(self) -> Stuck | None:
        for _, end, index in events_of(self._calls):
            step = self._steps[index]
            if not self._calls[index].certain:
                if step.sets:
                    self._hold_possible(index, step, not end)
            elif end:
                if not self._return(index, step):
                    return self._stuck(index)
            else:
                self._group(step).add(index)
        return None

    def _hold_possible(self, index: int, step: Step, possible: bool) -> None:
        """An uncertain call may take effect from now on, or can't any more."""
        by_step = self._uncertain.setdefault(step.result, {})
        alike = by_step.setdefault(step, [])
        if possible:
            alike.append(index)
            return
        # `_settle` may have taken it out already.
        alike[:] = [each for each in alike if each != index]
        if not alike:
            del by_step[step]
        if not by_step:
            del self._uncertain[step.result]

    def _group(self, step: Step) -> set[int]:
        if not step.sets:
            return self._looking
        return self._writing if step.is_write else self._changing

    def _return(self, index: int, step: Step) -> bool:
        """The call has returned, so it has taken effect; whether that is possible."""
        self._returned.append(index)
        alone = not self._writing and not self._changing and not self._uncertain
        if alone and index in self._looking and len(self._configs) == 1:
            # Nothing but reads: the state can't have changed.
            self._looking.discard(index)
            (config,) = self._configs
            self._budget.spend()
            if not step.allows(config.state) and index not in config.done:
                self._before = {config.state}
                return False
            self._configs = {config._replace(done=config.done - {index})}
        else:
            found = self._linearize(index, step)
            self._before = {config.state for config in self._configs}
            self._group(step).discard(index)
            self._configs = self._undominated(found)
        if not (self._looking or self._writing or self._changing) and len(self._configs) == 1:
            self._settle()
        return bool(self._configs)

    def _settle(self) -> None:
        """One state, nothing under way: what was used is used up for good."""
        (config,) = self._configs
        self._known = config.state
        self._returned.clear()
        if config.used:
            for by_step in self._uncertain.values():
                for step, alike in list(by_step.items()):
                    by_step[step] = [each for each in alike if each not in config.used]
            self._configs = {config._replace(used=_NONE)}

    def _stuck(self, index: int) -> Stuck:
        uncertain = [
            each
            for by_step in self._uncertain.values()
            for alike in by_step.values()
            for each in alike
        ]
        states = sorted(self._before, key=lambda state: (type(state).__name__, str(state)))
        return Stuck(index, self._known, tuple(self._returned), sorted(uncertain), states)

    # -- one return

    def _linearize(self, index: int, step: Step) -> set[Config]:
        """All configurations in which the call is done, without it among those done."""
        found: set[Config] = set()
        frontier: list[Config] = []
        for config in self._configs:
            if index in config.done:
                found.add(config._replace(done=config.done - {index}))
                continue
            if index in config.hidden:
                found.add(config._replace(hidden=config.hidden - {index}))
            frontier.append(config)
        visited: set[Config] = set()
        while frontier:
            config = self._look(frontier.pop())
            if config in visited:
                continue
            visited.add(config)
            self._budget.spend()
            if index in config.done:
                found.add(config._replace(done=config.done - {index}))
                continue
            if step.is_write:
                hidden = frozenset(self._writing - config.done - {index})
                found.add(self._look(Config(step.result, config.done, hidden, config.used)))
            frontier += self._next(config)
        return found

    def _look(self, config: Config) -> Config:
        """Every call under way that only looks, and that the state allows, is done."""
        seen = [
            index
            for index in self._looking
            if index not in config.done and self._steps[index].allows(config.state)
        ]
        return config._replace(done=config.done.union(seen)) if seen else config

    def _next(self, config: Config) -> Iterator[Config]:
        """The configurations after one more call that depends on the state."""
        for index in self._changing:
            if index in config.done:
                continue
            step = self._steps[index]
            allowed = step.allows(config.state)
            if allowed:
                yield self._after_change(config, index, step)
            if not allowed or self._to_hide(config):
                for chained in self._chains(config, step, ()):
                    yield self._after_change(chained, index, step)
        for index in self._looking:
            if index not in config.done:  # and isn't allowed, or `_look` would have done it
                yield from self._chains(config, self._steps[index], ())

    def _after_change(self, config: Config, index: int, step: Step) -> Config:
        return config._replace(state=step.result, done=config.done | {index})

    def _to_hide(self, config: Config) -> bool:
        """Whether a write under way is neither done nor hidden."""
        return not self._writing <= config.done | config.hidden

    def _chains(
        self, config: Config, target: Step, wanted: tuple[tuple[int, State], ...]
    ) -> Iterator[Config]:
        """Configurations that allow `target`, behind a chain of writes that makes them do so.

        `wanted` are the conditions that the rest of the chain is there to meet: what meets one of
        them in the middle would have done so at its end as well.
        """
        for index in self._writing - config.done:
            step = self._steps[index]
            if target.allows(step.result):
                done = config.done | {index}
                hidden = frozenset(self._writing - done)
                self._budget.spend()
                yield Config(step.result, done, hidden, config.used)
        wanted = (*wanted, (target.needs, target.operand))
        if target.needs == EQUAL:
            results: Iterable[State] = (target.operand,)
        else:
            results = [result for result in self._uncertain if target.allows(result)]
        for result in results:
            for step, alike in self._uncertain.get(result, {}).items():
                if (step.needs, step.operand) in wanted:
                    continue
                unused = next((each for each in alike if each not in config.used), None)
                if unused is None:
                    continue
                self._budget.spend()
                used = config.used | {unused}
                if step.is_write:
                    hidden = frozenset(self._writing - config.done)
                    yield Config(result, config.done, hidden, used)
                    continue
                spent = config._replace(used=used)
                allowed = step.allows(config.state)
                if allowed and not target.allows(config.state):
                    yield spent._replace(state=result)
                if not allowed or self._to_hide(config):
                    for chained in self._chains(spent, step, wanted):
                        if not target.allows(chained.state):
                            yield chained._replace(state=result)

    def _undominated(self, configs: set[Config]) -> set[Config]:
        """Without those that another one makes superfluous."""
        if len(configs) < 2:
            return configs
        groups: dict[tuple[State, frozenset[int]], list[Config]] = {}
        for config in configs:
            groups.setdefault((config.state, config.done), []).append(config)
        kept = set()
        for group in groups.values():
            # Those that can do the most come first: what comes later makes no earlier one needless.
            group.sort(key=lambda each: (len(each.used), -len(each.hidden)))
            best: list[Config] = []
            for config in group:
                self._budget.spend()
                if not any(
                    other.used <= config.used and other.hidden >= config.hidden for other in best
                ):
                    best.append(config)
            kept.update(best)
        return kept


def _with_unseen(steps: list[Step]) -> list[Step]:
    operands = {step.operand for step in steps}
    if UNSEEN in operands:
        return steps
    return [
        step._replace(result=UNSEEN) if step.sets and step.result not in operands else step
        for step in steps
    ]

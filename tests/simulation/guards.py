"""The guards of the rules, and each one's removal.

A guard is a condition that is easy to leave out and whose absence loses records, though only when
several things go wrong in a certain order. `# GUARD name` marks it in kraftpy/core; here is what
the rule would be without it. test_simulation.py shows that the simulation finds each removal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kraftpy import core
from kraftpy.core.metadata import broker_commands
from kraftpy.core.replication import Leadership, epochs, leader

Removal = tuple[object, str, Any]


def _committed_isr_only(self: Leadership) -> None:
    self.maximal_isr = frozenset(self.state.isr)


def _join_anyhow(
    self: Leadership, replica: leader.Follower, log_end_offset: int, now_ms: int
) -> bool:
    return replica.offset >= 0 and self._joins(replica, log_end_offset, now_ms)


def _forget_uncertain(self: Leadership, proposal: leader.IsrProposal, now_ms: int) -> None:
    if proposal is self._pending:
        self._give_up_proposal(now_ms)


GUARDS: dict[str, Removal] = {
    "maximal-isr": (Leadership, "_set_maximal_isr", _committed_isr_only),
    "min-isr": (Leadership, "_may_advance", lambda self: True),
    "join": (Leadership, "_may_join", _join_anyhow),
    "uncertain": (Leadership, "unanswered", _forget_uncertain),
    "divergence": (epochs, "divergence", lambda log, offset, epoch: None),
    "unclean-exclusion": (broker_commands, "broker_lost_data", lambda *_: None),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """The rules without one guard."""
    where, attribute, replacement = GUARDS[name]
    with patch.object(where, attribute, replacement):
        yield


def marked_in_code() -> set[str]:
    """The names of the guards that comments in kraftpy/core mark."""
    folder = Path(core.__file__).parent
    sources = (path.read_text() for path in sorted(folder.rglob("*.py")))
    return {name for source in sources for name in re.findall(r"# GUARD ([a-z-]+):", source)}


def assert_caught(
    removed: tuple[Removal, str], simulate: Callable[[int], Any], seeds: Iterable[int]
) -> None:
    """Without a rule one of these seeds finds a violation, and says what it has to of it."""
    (where, attribute, replacement), said = removed
    found = []
    with patch.object(where, attribute, replacement):
        for seed in seeds:
            violation = simulate(seed).violation
            if violation is not None:
                found.append(violation)
                if said in violation:
                    return
    pytest.fail(f"no seed without the rule says {said!r}: {[each[:200] for each in found]}")

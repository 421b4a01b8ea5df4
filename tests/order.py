"""The order of the tests: on two cores it decides how long all of them take.

Modules stay whole, and with them what a module starts once: `make test` and `make conformance` deal
them to their workers one by one, in this order. Those that start processes wait half of their time,
the others never do: mixed evenly they leave no core idle, and those that need quick processes never
have all cores against them. The longest come first: no worker is left alone with one at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pytest

_ROOT = Path(__file__).parent
_WAITING = ("cli", "clients", "consistency", "replication", "server", "testing", "unit/quorum")
"""Folders whose tests wait for processes; those of the others compute."""
_LONGEST = [_ROOT / "consistency" / f"test_{name}.py" for name in ("runs", "each_fault")]
_LONGEST += [
    _ROOT / "conformance" / f"test_{name}.py"
    for name in (
        *("consistency", "transactional_clients", "transactions_killed", "java_groups"),
        *("kafka_tools", "kafka_quotas", "classic_groups", "zookeeper_sync"),
    )
]
"""Those that take about a minute, or more."""
_WAITING_UNTIL = 0.9
"""The last part of the whole is left to those that take a second."""

_Each = TypeVar("_Each")


def rotated(found: Sequence[_Each], worker: int, workers: int) -> list[_Each]:
    """The same, begun at another place by each of the workers."""
    start = len(found) * worker // workers
    return [*found[start:], *found[:start]]


def sort(items: list[pytest.Item]) -> None:
    """Sorts by modules, and leaves the order in each of them."""
    places = {module: place for place, module in enumerate(in_order({i.path for i in items}))}
    items.sort(key=lambda item: places[item.path])


def in_order(modules: Iterable[Path]) -> list[Path]:
    """The modules of each folder that waits, and all others, spread evenly."""
    by_kind = sorted((_kind(module), module not in _LONGEST, module) for module in modules)
    spread: list[tuple[float, Path]] = []
    for folder, found in groupby(by_kind, lambda each: each[0]):
        kind = [module for *_, module in found]
        end = _WAITING_UNTIL if folder else 1.0
        spread += [(end * number / len(kind), module) for number, module in enumerate(kind)]
    return [module for _, module in sorted(spread)]


def _kind(module: Path) -> str:
    """Its folder, if that is one that waits."""
    for folder in _WAITING:
        if module.is_relative_to(_ROOT / folder):
            return folder
    return ""

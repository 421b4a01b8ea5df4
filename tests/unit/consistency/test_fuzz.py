"""Damaged histories: whatever a line says, it is judged or refused with a sentence."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.consistency import (
    WORKLOADS,
    Header,
    HistoryError,
    HistoryReader,
    HistoryWriter,
)
from kraftpy.testing.consistency.page import render
from kraftpy.testing.consistency.report import judge

PLACE = {"group": "g", "key": "t-0"}
RUNS = {"runs": {"t-0": [[0, 0, 1], [1, 1, 2]]}, "epochs": {"t-0": 1}}
SAID = {"said": {"t-0": [[0, 1], [1, 2]]}}
OPTIONS = {"limits": {"g": 5}, "lock_ms": 3}
STEPS: list[tuple[str, Any, Any]] = [
    ("send", [["t-0", 1], ["t-0", 2]], [["t-0", 1, 0], ["t-0", 2, 1]]),
    ("assign", {"t-0": 0}, None),
    ("poll", None, {"t-0": [[0, 1], [1, 2]]}),
    ("subscribe", ["t"], None),
    ("drain", None, {"t-0": [0, 2]}),
    ("assign", {"out-0": 0}, None),
    ("poll", None, {"out-0": [[0, "+5 1"], [1, "7 g t-0 0 1"], [2, "4/9"]]}),
    ("drain", None, {"out-0": [0, 3]}),
    ("stable", None, {"out-0": [2, 3]}),
    ("commit", {**PLACE, "offset": 1, "epoch": 3}, None),
    ("commit", {**PLACE, "offset": 2, "expected": 1}, {**PLACE, "offset": 2}),
    ("fetch", PLACE, {**PLACE, "offset": 2}),
    ("commit-all", {"group": "g", "offset": 1}, None),
    ("fetch-all", {"group": "g"}, {"group": "g", "offsets": [1, 2]}),
    ("stored", {"node": 1, "key": "t-0"}, {"node": 1, "key": "t-0", "batches": [[0, 1, 0, 9, 7]]}),
    ("epochs", {"node": 1, "key": "t-0", "epochs": [[0, 0]]}, None),
    ("led", {"key": "t-0", "epoch": 0, "leader": 1, "source": "metadata at 1"}, None),
    ("journals", {"nodes": [1, 2]}, None),
    ("create", {"name": "a", "config": 1}, None),
    ("alter", {"name": "a", "config": 2}, None),
    ("describe", {"name": "a"}, {"name": "a", "config": 2}),
    ("delete", {"name": "a"}, None),
    ("assigned", {"group": "g", "keys": ["t-0"], "epoch": 1}, None),
    ("processed", {**PLACE, "first": 0, "last": 1}, None),
    ("revoked", {"group": "g", "keys": ["t-0"]}, None),
    ("calm", {"group": "g"}, None),
    ("settled", {"group": "g", "keys": ["t-0"], "members": {"m": ["t-0"]}, "ms": 5}, None),
    ("uproar", {"group": "g"}, None),
    ("unsettled", {"group": "g", "detail": "it is Empty"}, None),
    ("ends", {"group": "g", "ends": {"t-0": 2}}, None),
    ("left", {"group": "g", "members": ["m"]}, None),
    ("ended", {"detail": "ended by itself"}, None),
    ("lease", {"group": "g"}, {"group": "g", **RUNS, "node": 1, "link": 0, "lock_ms": 3}),
    ("lease", {"group": "g", "since": 5}, {"group": "g", "since": 5, "runs": RUNS["runs"]}),
    ("hold", {"group": "g", "link": 0}, {"group": "g", "link": 0, "epochs": {"t-0": 1}}),
    ("acknowledge", {"group": "g", **SAID}, {"group": "g", **SAID, "errors": {}}),
    ("starts", {"group": "g"}, {"group": "g", "starts": {"t-0": [2, 0]}}),
    ("txn", [["append", "k", 1], ["r", "k", None]], [["append", "k", 1], ["r", "k", [1]]]),
    ("txn", [["append", "out-0", "+5 1"]], [["append", "out-0", "+5 1"]]),
    ("txn", [["append", "out-0/4", "4/9"]], [["append", "out-0/4", "4/9"]]),
]
JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "t-0",
    "x" * 400,
    [],
    {},
    [[]],
    [1],
    {"saw": 1},
    {"a": 1},
]


def a_history(path: Path, workload: str) -> list[Any]:
    ticks = itertools.count(1)
    with HistoryWriter(
        path, Header(workload, options=OPTIONS), clock_ns=lambda: next(ticks)
    ) as writer:
        for f, asked, answer in STEPS:
            op = writer.invoke(1, f, asked, client="c")
            writer.ok(1, op, f, answer)
            if answer or asked:
                writer.note(2, f, answer or asked)
        writer.fault("kill", "start", 1, ["broker 1"])
        writer.phase("final")
    return [json.loads(line) for line in path.read_text().splitlines()]


def damage(rng: random.Random, value: Any) -> Any:
    """The same with something in it replaced, left out or twice."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {each: part for each, part in value.items() if each != key}
        return {**value, key: damage(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return [*value[:place], damage(rng, value[place]), *value[place + rng.randrange(2) :]]
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.randrange(40)
    if value in ("invoke", "ok", "fail", "info") and rng.random() < 0.7:
        return rng.choice(("invoke", "ok", "fail", "info"))
    return rng.choice(JUNK)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_damage_is_judged_or_refused(tmp_path: Path, workload: str) -> None:
    rng = random.Random(workload)
    path = tmp_path / "history.jsonl"
    lines = a_history(path, workload)
    judged = 0
    refused = []
    for _ in range(400):
        spoiled = list(lines)
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(rng.random() > 0.1, len(spoiled))
            spoiled[place] = damage(rng, spoiled[place])
        path.write_text("\n".join(map(json.dumps, spoiled)))
        try:
            _, report = judge(HistoryReader(path))
        except HistoryError as error:
            refused.append(str(error))
        else:
            assert render(report).startswith("<!doctype html>")
            judged += 1
    assert judged > 20
    assert len(refused) > 20
    for said in refused:
        assert "line " in said or "no workload is called" in said

"""Every promise of every workload: planted anomalies are found in a stored history, end to end.

A checker without a planted anomaly, or one that finds nothing on its own, fails here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.testing.consistency import WORKLOADS, Header, HistoryReader, HistoryWriter, check
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.report import judge
from kraftpy.testing.consistency.verdicts import Findings

from . import (
    queue_histories,
    test_leases,
    test_ownership,
    test_rest,
    test_shares,
    transaction_histories,
)
from .test_linearizability import commits
from .test_list_append import ANOMALIES, random_transactions

Operations = list[Operation]
OPTIONS: dict[str, dict[str, Any]] = {
    "queue": {"idempotence": True},
    "replicas": {"idempotence": True},
    "transform": {"groups": {"a": "orders-a"}},
    "cooperative": test_shares.OPTIONS,
    "share": test_leases.OPTIONS,
}


def write(path: Path, workload: str, operations: Iterable[Operation]) -> HistoryReader:
    """A history as a run would have left it."""
    events: list[tuple[int, int, Operation]] = []
    for operation in operations:
        if operation.ended_ns != operation.invoked_ns:
            events.append((operation.invoked_ns, 0, operation))
        if operation.ended_ns != NEVER:
            events.append((operation.ended_ns, 1, operation))
    events.sort(key=lambda event: event[:2])
    now = 0
    header = Header(workload, options=OPTIONS.get(workload, {}))
    with HistoryWriter(path, header, clock_ns=lambda: now) as writer:
        numbers: dict[int, int] = {}
        for moment_ns, is_end, operation in events:
            now = moment_ns
            process, f = operation.process, operation.f
            asked, value = operation.asked, operation.value
            if f == "send":  # offsets are in the answer, if there is one
                asked = [record[:2] for record in asked]
                value = None if any(len(record) < 3 for record in value) else value
            if not is_end:
                numbers[id(operation)] = writer.invoke(process, f, asked)
            elif id(operation) not in numbers:
                writer.note(process, f, value)
            elif operation.outcome == "ok":
                writer.ok(process, numbers[id(operation)], f, value)
            else:
                end = writer.fail if operation.outcome == "fail" else writer.info
                end(process, numbers[id(operation)], f, "as planned", value)
    return HistoryReader(path)


def queue(name: str) -> Operations:
    plant = dict(queue_histories.PLANTS)[name]
    for seed in range(30):
        rng = random.Random(seed)
        spoiled = plant(rng, queue_histories.random_queue(rng, 150))
        if spoiled is not None:
            return spoiled
    raise AssertionError(f"nothing to plant {name} in")


def replicas(name: str) -> Operations:
    if name in dict(queue_histories.PLANTS):
        return queue(name)
    key, process = queue_histories.KEYS[0], 99

    def at(moment: int, f: str, value: dict[str, Any], outcome: str = "ok") -> Operation:
        moment += 10**6
        return Operation(moment, process, f, outcome, moment, moment + 1, value, value, "", "", "")

    def stored(moment: int, node: int, *batches: list[int], outcome: str = "ok") -> Operation:
        asked = {"node": node, "key": key}
        answer = {**asked, "batches": list(batches)} if outcome == "ok" else asked
        return at(moment, "stored", answer, outcome)._replace(asked=asked)

    def led(moment: int, epoch: int, leader: int) -> Operation:
        source = f"metadata at {moment}"
        value = {"key": key, "epoch": epoch, "leader": leader, "source": source}
        return at(moment, "led", value)

    batch = [0, 4, 0, 100, 17]
    planted = {
        "replica-divergence": [stored(1, 1, batch), stored(3, 2, [*batch[:4], 18])],
        "replica-damage": [stored(1, 1, outcome="fail")],
        "two-leaders": [led(1, 0, 1), led(3, 0, 2)],
        "epochs": [led(1, 0, 1), stored(3, 1, [0, 4, 1, 100, 17])],
        "metadata-divergence": [at(1, "journals", {"nodes": [1, 2]}, "fail")],
    }
    operations = queue_histories.random_queue(random.Random(1), 150)
    if name == "unacknowledged":  # a queue's senders give up, so there is one to find
        return operations
    return [*operations, *planted[name]]


def group(name: str) -> Operations:
    if name in dict(test_rest.PLANTS):
        return dict(test_rest.PLANTS)[name]()
    rng = random.Random(1)
    operations = [each for each in test_ownership.random_group(rng) if each.f != "commit"]
    if name in ("linearizable", "stale-read", "offset-regression"):
        return [*operations, *registers(name)]
    operations = test_ownership.random_group(rng)
    if name == "committed-unprocessed":
        operations = [each for each in operations if each.outcome == "ok"]
    spoiled: Operations = dict(test_ownership.PLANTS)[name](rng, operations)
    # Commits and sends take a moment here, as they do in a run.
    return [
        each._replace(ended_ns=each.ended_ns + 1) if each.f in ("commit", "send") else each
        for each in spoiled
    ]


def registers(name: str) -> Operations:
    match name:
        case "stale-read":
            return commits(9, 2, "?2", "?9")
        case "offset-regression":
            return commits(1, 2, 5, "?5", "?2")
        case _:
            return commits(1, 2, "?7")


def commits_of_all(name: str) -> Operations:
    """Of all partitions of a group; a read may show two commits at once."""
    if name == "torn-commit":
        first, second, read = commits_of_all("linearizable")
        return [first, second, read._replace(value={**read.value, "offsets": [1, 2]})]
    made = []
    for each in registers(name):
        asked = {field: part for field, part in each.asked.items() if field != "key"}
        value = {"group": "g", "offsets": [each.value["offset"]]} if each.f == "fetch" else asked
        made.append(each._replace(f=f"{each.f}-all", asked=asked, value=value))
    return made


def topics(name: str) -> Operations:
    def at(moment: int, f: str, answer: dict[str, Any]) -> Operation:
        asked = {"name": "a"} if f == "describe" else answer
        return Operation(moment, 1, f, "ok", moment, moment + 5, asked, answer, "", "", "")

    made = [
        at(10, "create", {"name": "a", "config": 1}),
        at(20, "alter", {"name": "a", "config": 2}),
    ]
    last = 1 if name == "stale-read" else 3
    return [*made, at(30, "describe", {"name": "a", "config": last})]


def whole(name: str) -> Operations:
    plants = transaction_histories.WHOLE | transaction_histories.TRANSFORMED
    return transaction_histories.history(plants["torn" if name == "sum" else name])


def transactions(name: str) -> Operations:
    if name in transaction_histories.WHOLE:
        return whole(name)
    others = [
        each._replace(process=each.line + 100) for each in random_transactions(random.Random(1))
    ]
    renamed = [
        each._replace(value=value, asked=_asked(value))
        for each in ANOMALIES[name]
        for value in [[[f, f"planted {key}", part] for f, key, part in each.value]]
    ]
    return [*(each._replace(asked=_asked(each.value)) for each in others), *renamed]


def _asked(value: list[list[Any]]) -> list[list[Any]]:
    return [[f, key, None if f == "r" else part] for f, key, part in value]


def shares(name: str) -> Operations:
    operations = dict(test_shares.PLANTS)[name]()
    return sorted(operations, key=lambda each: each.ended_ns)


def leases(name: str) -> Operations:
    return sorted(dict(test_leases.PLANTS)[name](), key=lambda each: each.ended_ns)


PLANTERS: dict[str, Callable[[str], Operations]] = {
    "queue": queue,
    "replicas": replicas,
    "offsets": registers,
    "commits": commits_of_all,
    "groups": group,
    "metadata": topics,
    "list-append": transactions,
    "transform": whole,
    "bank": whole,
    "cooperative": shares,
    "share": leases,
}


def promises(workload: str, folder: Path) -> list[str]:
    history = write(folder / "empty.jsonl", workload, [])
    return [verdict.checker for verdict in check(history).verdicts]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_promise_is_without_its_anomaly(tmp_path: Path, workload: str) -> None:
    found = []
    for name in promises(workload, tmp_path):
        history = write(tmp_path / f"{name}.jsonl", workload, PLANTERS[workload](name))
        outcome, report = judge(history)
        verdict = next(each for each in outcome.verdicts if each.checker == name)
        assert verdict.valid is False, f"{name} finds nothing"
        shown = next(each for each in report["verdicts"] if each["checker"] == name)
        assert shown["findings"][0]["operations"], f"{name} shows nothing"
        found.append(name)
    assert len(found) >= 2


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_blind_checker_would_be_noticed(
    tmp_path: Path, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Findings, "add", lambda *_: None)
    with pytest.raises(AssertionError, match="finds nothing"):
        test_no_promise_is_without_its_anomaly(tmp_path, workload)


def test_what_is_written_is_what_was_planned(tmp_path: Path) -> None:
    """The unspoiled histories are kept promises, so what is found above is what was planted."""
    plain: dict[str, Operations] = {
        "queue": queue_histories.random_queue(random.Random(3), 150),
        "offsets": commits(1, 2, "?2"),
        "metadata": topics("none")[:2],
        "list-append": transactions_without_anomaly(),
        "transform": transaction_histories.history(transaction_histories.transformed_soundly),
        "bank": transaction_histories.history(transaction_histories.sound),
        "cooperative": test_shares.story(),
        "share": test_leases.story(),
    }
    for workload, operations in plain.items():
        outcome = check(write(tmp_path / workload, workload, operations))
        assert outcome.valid is True, (
            workload,
            json.dumps([v.explanation for v in outcome.verdicts]),
        )
        assert outcome.operations == len(operations)


def transactions_without_anomaly() -> Operations:
    return [
        each._replace(process=each.line, asked=_asked(each.value))
        for each in random_transactions(random.Random(1))
    ]

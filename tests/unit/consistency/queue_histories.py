"""Random histories of logs that work, and ways to spoil them.

Senders with one or several sends under way, readers that assign and readers that subscribe, answers
that got lost, sends that never happened; at the end the logs are read from one end to the other.
A `plant_...` spoils a history in one way, or returns None where it has nothing to spoil.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kraftpy.testing.consistency.operations import NEVER, Operation

Operations = list[Operation]
KEYS = ("t-0", "t-1")


class _Model:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1
        self.line = 1
        self.logs: dict[str, list[int]] = {key: [] for key in KEYS}
        self.operations: Operations = []
        self.next_value = 0

    def tick(self) -> int:
        self.now += self.rng.randrange(1, 4)
        return self.now

    def next_line(self) -> int:
        self.line += 1
        return self.line

    def end(self, line: int, process: int, f: str, begun: int, asked: Any, **rest: Any) -> None:
        fields = {"outcome": "ok", "ended_ns": self.tick(), "value": asked, "error": ""} | rest
        self.operations.append(
            Operation(
                line, process, f, fields["outcome"], begun, fields["ended_ns"], asked,
                fields["value"], fields["error"], "", "",
            )
        )  # fmt: skip


class _Sender:
    """An idempotent producer: what it sends takes effect in this order, whenever it is answered."""

    def __init__(self, model: _Model, process: int) -> None:
        self.model = model
        self.process = process
        self.under_way: list[tuple[int, int, list[list[Any]]]] = []
        self.appended: list[tuple[int, int, list[list[Any]], list[list[Any]]]] = []

    def step(self) -> None:
        model = self.model
        match model.rng.randrange(3):
            case 0 if len(self.under_way) < 3:
                records = []
                for _ in range(model.rng.choice((1, 1, 2, 4))):
                    records.append([model.rng.choice(KEYS), model.next_value])
                    model.next_value += 1
                self.under_way.append((model.next_line(), model.tick(), records))
            case 1 if self.under_way:
                self._take_effect(*self.under_way.pop(0))
            case 2 if self.appended:
                place = model.rng.randrange(len(self.appended))
                self._answer(*self.appended.pop(place))

    def _take_effect(self, line: int, begun: int, records: list[list[Any]]) -> None:
        model = self.model
        if model.rng.random() < 0.05:
            outcome = model.rng.choice(("fail", "info"))
            model.end(line, self.process, "send", begun, records, outcome=outcome)
            return
        acked = []
        for key, value in records:
            model.logs[key].append(value)
            acked.append([key, value, len(model.logs[key]) - 1])
        self.appended.append((line, begun, records, acked))

    def _answer(
        self, line: int, begun: int, records: list[list[Any]], acked: list[list[Any]]
    ) -> None:
        fate = self.model.rng.random()
        if fate < 0.05:
            rest = {"outcome": "info", "ended_ns": NEVER}
            self.model.end(line, self.process, "send", begun, records, **rest)
            return
        if fate < 0.1:  # recognized as sent again: the broker may not know the offset (KIP-98)
            acked = [[key, value, None] for key, value, _ in acked]
        self.model.end(line, self.process, "send", begun, records, value=acked)

    def finish(self) -> None:
        while self.under_way:
            self._take_effect(*self.under_way.pop(0))
        while self.appended:
            self._answer(*self.appended.pop(0))


class _Reader:
    def __init__(self, model: _Model, process: int, subscribes: bool) -> None:
        self.model = model
        self.process = process
        self.subscribes = subscribes
        self.positions = dict.fromkeys(KEYS, 0)
        if subscribes:
            model.end(model.next_line(), process, "subscribe", model.tick(), ["t"])
        else:
            self._assign({key: model.rng.choice((0, None)) for key in KEYS})

    def _assign(self, first: dict[str, int | None]) -> None:
        self.model.end(self.model.next_line(), self.process, "assign", self.model.tick(), first)
        self.positions = {key: offset or 0 for key, offset in first.items()}

    def step(self) -> None:
        model = self.model
        if model.rng.random() < 0.05:
            if self.subscribes:  # somebody else had the partition, or its reads were for nothing
                key = model.rng.choice(KEYS)
                self.positions[key] = model.rng.randrange(len(model.logs[key]) + 1)
            else:
                self._assign({key: model.rng.randrange(len(model.logs[key]) + 1) for key in KEYS})
        self.poll(model.rng.randrange(8))

    def poll(self, most: int) -> None:
        model = self.model
        line, begun = model.next_line(), model.tick()
        found = {}
        for key in KEYS:
            first = self.positions[key]
            values = model.logs[key][first : first + most]
            if values or model.rng.random() < 0.2:
                found[key] = [[first + i, value] for i, value in enumerate(values)]
            self.positions[key] = first + len(values)
        model.tick()
        model.end(line, self.process, "poll", begun, None, value=found)

    def drain(self) -> None:
        model = self.model
        self._assign(dict.fromkeys(KEYS, 0))
        line, begun = model.next_line(), model.tick()
        while any(self.positions[key] < len(model.logs[key]) for key in KEYS):
            self.poll(20)
        ends = {key: [0, len(model.logs[key])] for key in KEYS}
        model.end(line, self.process, "drain", begun, None, value=ends)


def random_queue(rng: random.Random, steps: int = 300) -> Operations:
    model = _Model(rng)
    senders = [_Sender(model, process) for process in range(3)]
    readers = [_Reader(model, 10 + process, process == 2) for process in range(3)]
    for _ in range(steps):
        model.tick()
        rng.choice([*senders, *senders, *readers]).step()
    for sender in senders:
        sender.finish()
    _Reader(model, 20, False).drain()
    return model.operations


# -- helpers for planting


def _sends(operations: Operations) -> list[tuple[int, int, str, int, int]]:
    """(operation, place in it, key, value, offset) of what was acknowledged with an offset."""
    return [
        (index, place, *record)
        for index, operation in enumerate(operations)
        if operation.f == "send" and operation.outcome == "ok"
        for place, record in enumerate(operation.value)
        if record[2] is not None
    ]


def _with_polls(
    operations: Operations, change: Callable[[str, list[Any]], list[Any]]
) -> Operations:
    """Every poll's records of every key replaced."""
    return [
        operation._replace(
            value={key: change(key, records) for key, records in operation.value.items()}
        )
        if operation.f == "poll"
        else operation
        for operation in operations
    ]


def _polls(operations: Operations, least: int, *, assigned: bool = False) -> list[tuple[int, str]]:
    """(operation, key) of polls that brought so many records."""
    return [
        (index, key)
        for index, operation in enumerate(operations)
        if operation.f == "poll" and not (assigned and operation.process == 12)
        for key, records in operation.value.items()
        if len(records) >= least
    ]


def _with_records(operations: Operations, index: int, key: str, records: list[Any]) -> Operations:
    spoiled = list(operations)
    poll = spoiled[index]
    spoiled[index] = poll._replace(value={**poll.value, key: records})
    return spoiled


def _read(operations: Operations) -> dict[tuple[str, int], int]:
    """(key, value) -> offset of all that was read."""
    return {
        (key, value): offset
        for operation in operations
        if operation.f == "poll"
        for key, records in operation.value.items()
        for offset, value in records
    }


def _swap(operations: Operations, key: str, one: int, other: int) -> Operations:
    """The log has these two values in each other's place, and everybody says so."""
    read = _read(operations)
    offsets = {one: read[key, other], other: read[key, one]}
    names = {one: other, other: one}
    spoiled = _with_polls(
        operations,
        lambda at, records: [[o, names.get(v, v) if at == key else v] for o, v in records],
    )
    return [
        operation._replace(
            value=[
                [k, v, offsets.get(v, o) if k == key and o is not None else o]
                for k, v, o in operation.value
            ]
        )
        if operation.f == "send" and len(operation.value[0]) == 3
        else operation
        for operation in spoiled
    ]


# -- planted anomalies


def plant_inconsistent_offset(rng: random.Random, operations: Operations) -> Operations | None:
    index, key = rng.choice(_polls(operations, 1))
    records = list(operations[index].value[key])
    place = rng.randrange(len(records))
    known = [value for _, _, k, value, _ in _sends(operations) if k == key]
    other = rng.choice([value for value in known if value != records[place][1]])
    records[place] = [records[place][0], other]
    return _with_records(operations, index, key, records)


def plant_duplicate(rng: random.Random, operations: Operations) -> Operations | None:
    index, key = _polls(operations, 1)[-1]  # the last of the drain: behind it is the log's end
    records = operations[index].value[key]
    _, _, _, value, _ = rng.choice([each for each in _sends(operations) if each[2] == key])
    return _with_records(operations, index, key, [*records, [records[-1][0] + 1, value]])


def plant_aborted_read(rng: random.Random, operations: Operations) -> Operations | None:
    index, *_ = rng.choice(_sends(operations))
    spoiled = list(operations)
    spoiled[index] = spoiled[index]._replace(outcome="fail", value=spoiled[index].asked)
    return spoiled


def plant_never_sent(rng: random.Random, operations: Operations) -> Operations | None:
    index, *_ = rng.choice(_sends(operations))
    return operations[:index] + operations[index + 1 :]


def plant_sent_later(rng: random.Random, operations: Operations) -> Operations | None:
    index, *_ = rng.choice(_sends(operations))
    spoiled = list(operations)
    late = operations[-1].ended_ns + 1
    spoiled[index] = spoiled[index]._replace(invoked_ns=late, ended_ns=late + 1)
    return spoiled


def plant_lost_write(rng: random.Random, operations: Operations) -> Operations | None:
    _, _, key, value, offset = rng.choice(_sends(operations))
    if offset == max(o for (k, _), o in _read(operations).items() if k == key):
        return None
    return _with_polls(
        operations, lambda at, records: [r for r in records if (at, r[1]) != (key, value)]
    )


def plant_cut_tail(rng: random.Random, operations: Operations) -> Operations | None:
    _, _, key, _, offset = rng.choice(_sends(operations))
    spoiled = _with_polls(
        operations, lambda at, records: [r for r in records if at != key or r[0] < offset]
    )
    drain = spoiled[-1]
    ends = {**drain.value, key: [0, offset]}
    spoiled[-1] = drain._replace(value=ends)
    return spoiled


def plant_dirty_read(rng: random.Random, operations: Operations) -> Operations | None:
    """A reader saw the end of a log that was cut off afterwards."""
    drain = operations[-1]
    seen = [
        (key, record[0])
        for each in operations
        if each.f == "poll" and each.process != drain.process
        for key, records in each.value.items()
        for record in records
    ]
    if not seen:
        return None
    key, end = rng.choice(sorted(set(seen)))
    spoiled = [
        each._replace(
            value={
                at: [r for r in records if at != key or r[0] < end]
                for at, records in each.value.items()
            }
        )
        if each.f == "poll" and each.process == drain.process
        else each
        for each in operations
    ]
    spoiled[-1] = drain._replace(value={**drain.value, key: [0, end]})
    return spoiled


def plant_drain_skip(rng: random.Random, operations: Operations) -> Operations | None:
    """Whoever drains leaves something out that others have seen."""
    seen = {
        (key, record[1])
        for each in operations
        if each.f == "poll" and each.process != 20
        for key, records in each.value.items()
        for record in records
    }
    if not seen:
        return None
    key, value = rng.choice(sorted(seen))
    return [
        each._replace(
            value={
                at: [r for r in records if (at, r[1]) != (key, value)]
                for at, records in each.value.items()
            }
        )
        if each.f == "poll" and each.process == 20
        else each
        for each in operations
    ]


def plant_unseen(rng: random.Random, operations: Operations) -> Operations | None:
    index, place, key, value, _ = rng.choice(_sends(operations))
    spoiled = _with_polls(
        operations, lambda at, records: [r for r in records if (at, r[1]) != (key, value)]
    )
    records = list(spoiled[index].value)
    records[place] = [key, value, None]
    spoiled[index] = spoiled[index]._replace(value=records)
    return spoiled


def plant_going_back(rng: random.Random, operations: Operations) -> Operations | None:
    index, key = rng.choice(_polls(operations, 1, assigned=True))
    later = [
        i
        for i, k in _polls(operations, 1, assigned=True)
        if i > index and k == key and operations[i].process == operations[index].process
    ]
    if not later or any(
        operation.f == "assign" and operation.process == operations[index].process
        for operation in operations[index : later[0]]
    ):
        return None
    return _with_records(operations, later[0], key, operations[index].value[key])


def plant_int_going_back(rng: random.Random, operations: Operations) -> Operations | None:
    index, key = rng.choice(_polls(operations, 2))
    return _with_records(operations, index, key, operations[index].value[key][::-1])


def plant_skip(rng: random.Random, operations: Operations) -> Operations | None:
    process = rng.choice((10, 11, 20))
    places = [
        (i, operations[i].f, k)
        for i, k in [
            *((i, key) for i, key in _polls(operations, 1)),
            *((i, key) for i, o in enumerate(operations) if o.f == "assign" for key in KEYS),
        ]
        if operations[i].process == process
    ]
    key = rng.choice(KEYS)
    mine = sorted((i, f) for i, f, k in places if k == key)
    middles = [
        mine[n][0]
        for n in range(1, len(mine) - 1)
        if [f for _, f in mine[n - 1 : n + 2]] == ["poll"] * 3
    ]
    known = {(k, offset) for _, _, k, _, offset in _sends(operations)}
    middles = [i for i in middles if any((key, o) in known for o, _ in operations[i].value[key])]
    return _with_records(operations, rng.choice(middles), key, []) if middles else None


def plant_int_skip(rng: random.Random, operations: Operations) -> Operations | None:
    index, key = rng.choice(_polls(operations, 3))
    records = operations[index].value[key]
    place = rng.randrange(1, len(records) - 1)
    known = {(k, offset) for _, _, k, _, offset in _sends(operations)}
    if (key, records[place][0]) not in known:
        return None
    return _with_records(operations, index, key, records[:place] + records[place + 1 :])


def plant_send_back(rng: random.Random, operations: Operations) -> Operations | None:
    index, _, key, value, _ = rng.choice(_sends(operations))
    mine = operations[index]
    later = [
        v
        for i, _, k, v, _ in _sends(operations)
        if k == key and operations[i].process == mine.process and operations[i].line > mine.line
    ]
    return _swap(operations, key, value, rng.choice(later)) if later else None


def plant_int_send_back(rng: random.Random, operations: Operations) -> Operations | None:
    index, place, key, value, _ = rng.choice(_sends(operations))
    later = [v for i, p, k, v, _ in _sends(operations) if (i, k) == (index, key) and p > place]
    return _swap(operations, key, value, rng.choice(later)) if later else None


def plant_out_of_time(rng: random.Random, operations: Operations) -> Operations | None:
    index, _, key, value, _ = rng.choice(_sends(operations))
    later = [
        v
        for i, _, k, v, _ in _sends(operations)
        if k == key and operations[i].invoked_ns > operations[index].ended_ns
    ]
    return _swap(operations, key, value, rng.choice(later)) if later else None


PLANTS: list[tuple[str, Callable[[random.Random, Operations], Operations | None]]] = [
    ("inconsistent-offsets", plant_inconsistent_offset),
    ("duplicate", plant_duplicate),
    ("aborted-read", plant_aborted_read),
    ("phantom-read", plant_never_sent),
    ("phantom-read", plant_sent_later),
    ("lost-write", plant_lost_write),
    ("lost-write", plant_cut_tail),
    ("dirty-read", plant_dirty_read),
    ("drain-skip", plant_drain_skip),
    ("unseen", plant_unseen),
    ("nonmonotonic-poll", plant_going_back),
    ("int-nonmonotonic-poll", plant_int_going_back),
    ("poll-skip", plant_skip),
    ("int-poll-skip", plant_int_skip),
    ("nonmonotonic-send", plant_send_back),
    ("int-nonmonotonic-send", plant_int_send_back),
    ("real-time-order", plant_out_of_time),
]

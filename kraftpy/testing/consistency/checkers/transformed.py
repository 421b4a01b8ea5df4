"""Records that are read, transformed and written: each of them once, whatever happens between.

Every group transforms all of the input for itself. A value of the output says what it was made of:
the group, the partition and offset of the input, and its value: `a t-0 17 6.6001`, behind what
makes it unique. An input that was acknowledged has one output for each group; one that wasn't has
one or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.checkers.drained import Drain, Drained, Value
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_PROMISES = {
    "transformed-twice": "nothing is transformed twice",
    "untransformed": "what was acknowledged is transformed",
    "made-up": "what is written was made of what was sent",
}

_OFFSET_DIGITS_MAX = 19


class Source(NamedTuple):
    """What an output was made of."""

    group: str
    key: str
    offset: int
    value: str


def source_of(value: Value) -> Source | None:
    """None for what no worker of this workload writes."""
    _, *rest = str(value).split(" ")
    if len(rest) != 4 or not rest[2].isdecimal() or len(rest[2]) > _OFFSET_DIGITS_MAX:
        return None
    group, key, offset, sent = rest
    return Source(group, key, int(offset), sent)


def output(unique: int, source: Source) -> str:
    return " ".join(map(str, (unique, *source)))


class TransformedChecker:
    """`groups` are the names in outputs."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = groups
        self._drained = Drained()
        self._sent: dict[tuple[str, str], tuple[int, bool]] = {}
        """(partition, value) -> (line, whether it is acknowledged)"""
        self._writers: dict[tuple[str, Value], int] = {}
        self._found = {name: Findings() for name in _PROMISES}

    def observe(self, operation: Operation) -> None:
        if operation.f == "send":
            for key, value, *offset in operation.value:
                known = operation.outcome == "ok" or bool(offset and offset[0] is not None)
                if operation.outcome != "fail":
                    self._sent[key, str(value)] = operation.line, known
        elif operation.f == "txn":
            for f, key, value in operation.value:
                if f == "append":
                    self._writers[key, value] = operation.line
        else:
            self._drained.observe(operation)

    def verdicts(self) -> Iterator[Verdict]:
        for drain in self._drained.found:
            self._judge(drain)
        acknowledged = sum(known for _, known in self._sent.values())
        counts = {"acknowledged": acknowledged, "drains": len(self._drained.found)}
        for name, promise in _PROMISES.items():
            yield self._found[name].verdict(name, promise, "none was found", counts)

    def _judge(self, drain: Drain) -> None:
        lines: dict[Source, list[int]] = {}
        for key, values in drain.values.items():
            for value in values:
                source, writer = source_of(value), self._writers.get((key, value), -1)
                if source is None or (source.key, source.value) not in self._sent:
                    summary = f"{value!r} is in {key}, and was made of nothing that was sent"
                    self._found["made-up"].add(summary, (writer, drain.line), key)
                else:
                    lines.setdefault(source, []).append(writer)
        done = {(each.group, each.key, each.value) for each in lines}
        for source, writers in lines.items():
            if len(writers) > 1:
                told = f"{source.key} {source.offset} was transformed {len(writers)} times"
                sent, _ = self._sent[source.key, source.value]
                where = (sent, *writers, drain.line)
                self._found["transformed-twice"].add(told, where, source.key)
        for (key, sent_value), (line, known) in self._sent.items():
            for group in self._groups if known else ():
                if (group, key, sent_value) not in done:
                    told = f"{sent_value!r} of {key} was not transformed for {group}"
                    self._found["untransformed"].add(told, (line, drain.line), key)

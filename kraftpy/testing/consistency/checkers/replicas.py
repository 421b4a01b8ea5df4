"""What nodes have on disk, when they have stopped: is it the same everywhere, and who led when?

Rules:

* Below the end of a log (the largest that a reader was told) all of its replicas hold the same
  batches, and nothing above it; a batch is known by its offsets, epoch, size and CRC, which was
  compared with its records when it was read. Offsets leave no gap.
* Each leader epoch has one leader, by the committed metadata and by what brokers tell clients.
* Records of an epoch come from somebody who led in it. Each replica notes where an epoch begins in
  its leader-epoch-checkpoint (KIP-101), and that is where its first batch begins. The metadata may
  begin with a snapshot: of epochs before it nobody needs to know the leader.
* Journals of the metadata don't contradict: an index and a term stand for one command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

METADATA = "metadata"
"""How the `source` of a `led` begins that comes from the committed metadata."""

Batch = tuple[int, int, int, int, int]
"""First offset, last offset, epoch, size in bytes, CRC."""


@dataclass(slots=True)
class _Replica:
    line: int
    batches: list[Batch] = field(default_factory=list)
    epochs: dict[int, int] | None = None
    epochs_line: int = -1


@dataclass(slots=True)
class _Leader:
    leader: int
    source: str
    line: int


class ReplicaChecker:
    """The checker of what stopped nodes have; `expected` is whether a run looks at that."""

    def __init__(self, *, expected: bool) -> None:
        self._expected = expected
        self._replicas: dict[str, dict[int, _Replica]] = {}
        self._damaged = Findings()
        self._ends: dict[str, int] = {}
        self._leaders: dict[str, dict[int, _Leader]] = {}
        self._known_from: dict[str, int] = {}
        self._two_leaders = Findings()
        self._journals = Findings()
        self._compared = 0

    def observe(self, operation: Operation) -> None:
        match operation.f:
            case "drain" if operation.outcome == "ok":
                for key, (_, end) in operation.value.items():
                    self._ends[key] = max(end, self._ends.get(key, 0))
            case "stored":
                self._observe_stored(operation)
            case "epochs":
                replica = self._replica(operation)
                replica.epochs = dict(operation.value["epochs"])
                replica.epochs_line = operation.line
            case "led":
                self._observe_led(operation)
            case "journals":
                self._compared += 1
                if operation.outcome != "ok":
                    self._journals.add(operation.error, (operation.line,))

    def _replica(self, operation: Operation) -> _Replica:
        value = operation.value
        replicas = self._replicas.setdefault(value["key"], {})
        return replicas.setdefault(value["node"], _Replica(operation.line))

    def _observe_stored(self, operation: Operation) -> None:
        if operation.outcome == "ok":
            replica = self._replica(operation)
            replica.batches += [
                (first, last, epoch, size_bytes, crc)
                for first, last, epoch, size_bytes, crc in operation.value["batches"]
            ]
        else:
            value = operation.value
            self._damaged.add(
                f"node {value['node']} has a damaged log of {value['key']}: {operation.error}",
                (operation.line,),
                value["key"],
            )

    def _observe_led(self, operation: Operation) -> None:
        value = operation.value
        key, epoch, leader = value["key"], value["epoch"], value["leader"]
        source = value["source"]
        if source.startswith(METADATA):
            self._known_from[key] = min(epoch, self._known_from.get(key, epoch))
        leaders = self._leaders.setdefault(key, {})
        known = leaders.setdefault(epoch, _Leader(leader, source, operation.line))
        if known.leader != leader:
            self._two_leaders.add(
                f"epoch {epoch} of {key} was led by {known.leader}, says {known.source}, and by"
                f" {leader}, says {source}",
                (known.line, operation.line),
                key,
            )

    def verdicts(self) -> Iterator[Verdict]:
        counts = {"replicas": sum(map(len, self._replicas.values()))}
        promise = "below the end of a log all of its replicas hold the same bytes"
        if self._expected and not self._replicas and not self._damaged.count:
            said = "nothing was read from the disks of the nodes"
            yield Verdict("replica-divergence", None, promise, said, counts)
        else:
            good = "all replicas were the same"
            yield self._divergence().verdict("replica-divergence", promise, good, counts)
        yield self._damaged.verdict(
            "replica-damage", "every replica can be read from disk", "each one could be", counts
        )
        yield self._two_leaders.verdict(
            "two-leaders",
            "each epoch of a partition has one leader",
            "nobody was told of two leaders in one epoch",
            {"epochs": sum(map(len, self._leaders.values()))},
        )
        yield self._epochs().verdict(
            "epochs",
            "an epoch's records are those of its leader, and every replica knows where they begin",
            "all replicas know where each epoch begins",
            counts,
        )
        yield self._journals.verdict(
            "metadata-divergence",
            "all voters have the same committed metadata",
            "no journals contradicted",
            {"comparisons": self._compared},
        )

    def _divergence(self) -> Findings:
        findings = Findings()
        for key, replicas in self._replicas.items():
            end = self._ends.get(key)
            reference = min(replicas)
            for node, replica in sorted(replicas.items()):
                last = replica.batches[-1][1] if replica.batches else -1
                if end is not None and last != end - 1:
                    findings.add(
                        f"the log of {key} on node {node} ends with {last}, not with {end - 1}",
                        (replica.line,),
                        key,
                    )
                for before, behind in pairwise(replica.batches):
                    if behind[0] != before[1] + 1:
                        findings.add(
                            f"node {node} has {_text(behind)} of {key} behind {_text(before)}",
                            (replica.line,),
                            key,
                        )
                if node != reference:
                    self._compare(findings, key, (reference, node), end)
        return findings

    def _compare(
        self, findings: Findings, key: str, nodes: tuple[int, int], end: int | None
    ) -> None:
        one, other = (self._replicas[key][node] for node in nodes)
        expected, found = (
            [batch for batch in each.batches if end is None or batch[0] < end]
            for each in (one, other)
        )
        if expected == found:
            return
        place = next(
            (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
            min(len(expected), len(found)),
        )
        theirs, mine = (
            _text(side[place]) if place < len(side) else "nothing" for side in (expected, found)
        )
        findings.add(
            f"of {key} node {nodes[1]} has {mine} where node {nodes[0]} has {theirs}",
            (one.line, other.line),
            key,
        )

    def _epochs(self) -> Findings:
        findings = Findings()
        for key, replicas in self._replicas.items():
            reference = replicas[min(replicas)]
            starts: dict[int, int] = {}
            newest = -1
            for first, _, epoch, _, _ in reference.batches:
                if epoch < newest:
                    findings.add(
                        f"epoch {epoch} at offset {first} of {key} comes after epoch {newest}",
                        (reference.line,),
                        key,
                    )
                newest = max(newest, epoch)
                starts.setdefault(epoch, first)
            for epoch in self._without_leader(key, starts):
                findings.add(
                    f"nobody led {key} in epoch {epoch}, which has records from {starts[epoch]} on",
                    (reference.line,),
                    key,
                )
            for node, replica in sorted(replicas.items()):
                self._compare_epochs(findings, key, node, replica, starts)
        return findings

    def _compare_epochs(
        self, findings: Findings, key: str, node: int, replica: _Replica, starts: dict[int, int]
    ) -> None:
        if replica.epochs is None:
            return
        lines = (replica.line, replica.epochs_line)
        for epoch, start in starts.items():
            noted = replica.epochs.get(epoch)
            if noted != start:
                text = f"node {node} notes {noted} as the start of epoch {epoch} of {key}"
                findings.add(f"{text}, which is {start}", lines, key)
        for epoch in self._without_leader(key, replica.epochs):
            text = f"node {node} notes epoch {epoch} of {key}, in which nobody led"
            findings.add(text, lines, key)

    def _without_leader(self, key: str, epochs: dict[int, int]) -> Iterator[int]:
        known_from = self._known_from.get(key)
        leaders = self._leaders.get(key, {})
        if known_from is not None:
            yield from (each for each in epochs if each >= known_from and each not in leaders)


def _text(batch: Batch) -> str:
    first, last, epoch, size_bytes, crc = batch
    return f"offsets {first} to {last} of epoch {epoch} in {size_bytes} bytes (CRC {crc:08x})"

"""Members that share partitions: each key in order, and what is claimed is done, once and for all.

Rules:

* The first times that a group processes the records of a key ascend. Whoever takes a key over
  begins with what nobody has claimed, and all before that was processed: so this holds also while
  somebody goes on who was replaced and doesn't know it yet.
* A claim is done when it is answered; all below a stable offset is done when somebody has read
  that. From then on it stays claimed, or below the stable offset, and is never handed out again: a
  poll that begins later doesn't bring it.
* A member that names no slices knows of no claims: to it what lies below the stable offset is done.
  Who had all of a partition, and others were given it meanwhile, may go on for a while.
* What is claimed, or lies below the stable offset, somebody has processed.
* The stable offset never goes back: nobody in this workload resets.
* When nothing is sent any more and the groups had time, each stable offset is the end of its log.
* What depends on in which slot a record is, is judged where that is known: somebody has processed a
  record of its key, or this record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.checkers.pieces import WHOLE, slices_of
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_PROMISES = {
    "key-order": "the records of a key are processed in order, whoever does so",
    "claimed-unprocessed": "what is claimed, or lies below the stable offset, was processed",
    "processed-anew": "what is claimed is never handed out again",
    "claim-lost": "what is claimed stays so",
    "stable-back": "the stable offset never goes back",
    "unfinished": "in the end all is done",
}


class _Processed(NamedTuple):
    at_ns: int
    offset: int
    record_key: str
    slot: int
    polled_ns: int
    process: int
    line: int


class _Claimed(NamedTuple):
    """A record that an answered claim is about."""

    ended_ns: int
    offset: int
    slot: int
    line: int


class _Committed(NamedTuple):
    ended_ns: int
    offset: int
    line: int


class _Read(NamedTuple):
    """What somebody read of a group's progress."""

    invoked_ns: int
    ended_ns: int
    stable: int
    claims: Sequence[Sequence[int]]
    line: int

    def covers(self, offset: int, slot: int) -> bool:
        return offset < self.stable or any(
            low <= slot <= high and first <= offset <= last
            for low, high, first, last in self.claims
        )


class _Given(NamedTuple):
    """A member was given some of a partition, or gave some up."""

    at_ns: int
    process: int
    came: bool
    whole: bool
    epoch: int


@dataclass(slots=True)
class _Place:
    """What a group did with a partition."""

    processed: list[_Processed] = field(default_factory=list)
    claimed: list[_Claimed] = field(default_factory=list)
    committed: list[_Committed] = field(default_factory=list)
    reads: list[_Read] = field(default_factory=list)
    given: list[_Given] = field(default_factory=list)
    end: int = -1
    end_ns: int = NEVER
    end_line: int = -1


class SharesChecker:
    """Of all that a group does with a partition, but who owns it (`pieces`)."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _Place] = {}
        self._sharing: set[int] = set()
        """Processes that know of slices, and so of claims."""
        self._slots: dict[str, int] = {}
        self._sent: dict[str, dict[int, str]] = {}
        """Of each partition: offset -> the record's key."""
        self._found = {name: Findings() for name in _PROMISES}
        self._counts = {"processed": 0, "claimed": 0, "read": 0}

    def observe(self, operation: Operation) -> None:
        if operation.f == "processed":
            self._observe_processed(operation)
        elif operation.f == "send":
            for key, value, *offset in operation.value:
                if offset and offset[0] is not None:
                    self._sent.setdefault(key, {})[offset[0]] = record_key_of(str(value))
        elif operation.outcome == "ok":
            self._observe_done(operation)

    def _place(self, group: str, key: str) -> _Place:
        return self._places.setdefault((group, key), _Place())

    def _observe_processed(self, operation: Operation) -> None:
        value = operation.value
        record_key, slot = value.get("of", ""), value.get("slot", -1)
        if record_key:
            self._slots[record_key] = slot
        polled_ns = value.get("polled", operation.invoked_ns)
        place = self._place(value["group"], value["key"])
        for offset in range(value["first"], value["last"] + 1):
            self._counts["processed"] += 1
            place.processed.append(
                _Processed(
                    operation.invoked_ns, offset, record_key, slot, polled_ns,
                    operation.process, operation.line,
                )
            )  # fmt: skip

    def _observe_done(self, operation: Operation) -> None:
        value, line = operation.value, operation.line
        match operation.f:
            case "assigned" | "revoked" | "lost" | "gone":
                if "slices" in value:
                    self._sharing.add(operation.process)
                came = operation.f == "assigned"
                for key, slices in slices_of(value).items():
                    all_of_it = came and slices == WHOLE
                    self._place(value["group"], key).given.append(
                        _Given(
                            operation.invoked_ns,
                            operation.process,
                            came,
                            all_of_it,
                            value.get("epoch", -1),
                        )
                    )
            case "claim":
                for key, records in operation.asked["records"].items():
                    place = self._place(operation.asked["group"], key)
                    for slot, offset in records:
                        self._counts["claimed"] += 1
                        place.claimed.append(_Claimed(operation.ended_ns, offset, slot, line))
            case "commit":
                asked = operation.asked
                place = self._place(asked["group"], asked["key"])
                place.committed.append(_Committed(operation.ended_ns, asked["offset"], line))
            case "progress":
                self._counts["read"] += 1
                read = _Read(
                    operation.invoked_ns, operation.ended_ns, value["stable"], value["claims"], line
                )
                self._place(value["group"], value["key"]).reads.append(read)
            case "ends":
                for key, end in value["ends"].items():
                    place = self._place(value["group"], key)
                    place.end, place.end_ns, place.end_line = end, operation.invoked_ns, line

    def verdicts(self) -> Iterator[Verdict]:
        for (group, key), place in self._places.items():
            judge = _Judge(
                f"{key} in group {group}", f"{group}/{key}", place, self._found, self._sharing
            )
            judge.judge(self._slots_of(key, place), self._sent.get(key, {}))
        for name, promise in _PROMISES.items():
            yield self._found[name].verdict(name, promise, "nothing was found", self._counts)

    def _slots_of(self, key: str, place: _Place) -> dict[int, int]:
        """Offset -> slot, of records of which it is known."""
        sent = self._sent.get(key, {})
        slots = {
            offset: self._slots[record_key]
            for offset, record_key in sent.items()
            if record_key in self._slots
        }
        return slots | {each.offset: each.slot for each in place.processed if each.slot >= 0}


class _Judge:
    """One place; `where` are words for it."""

    def __init__(
        self,
        where: str,
        name: str,
        place: _Place,
        found: Mapping[str, Findings],
        sharing: set[int],
    ) -> None:
        self._where = where
        self._name = name
        self._place = place
        self._found = found
        self._sharing = sharing
        self._first: dict[int, _Processed] = {}
        """The first time that an offset was processed."""

    def judge(self, slots: Mapping[int, int], record_keys: Mapping[int, str]) -> None:
        self._judge_order(record_keys)
        reads = sorted(self._place.reads)
        self._judge_reads(sorted(reads, key=lambda each: each.ended_ns), slots)
        self._judge_claims(reads)
        self._judge_stable(reads)
        self._judge_repeats(slots)
        self._judge_end(reads)

    def _add(self, name: str, summary: str, *lines: int) -> None:
        self._found[name].add(f"{summary} of {self._where}", lines, self._name)

    def _judge_order(self, record_keys: Mapping[int, str]) -> None:
        newest: dict[str, _Processed] = {}
        for each in sorted(self._place.processed):
            if each.offset in self._first:
                continue
            self._first[each.offset] = each
            record_key = each.record_key or record_keys.get(each.offset, "")
            before = newest.get(record_key)
            if not record_key or before is None or before.offset < each.offset:
                newest[record_key] = each
            else:
                self._add(
                    "key-order",
                    f"process {each.process} processed {each.offset} of the key"
                    f" {record_key!r} for the first time when process {before.process} had"
                    f" processed {before.offset}",
                    before.line,
                    each.line,
                )

    def _judge_reads(self, reads: Sequence[_Read], slots: Mapping[int, int]) -> None:
        judged: set[int] = set()
        below = 0
        for read in reads:
            for offset in range(below, max(below, read.stable)):
                self._judge_one(read, offset, judged)
            below = max(below, read.stable)
            for low, high, first, last in read.claims:
                # Claims also cover what isn't there.
                for offset in range(max(first, below), last + 1):
                    if low <= slots.get(offset, -1) <= high:
                        self._judge_one(read, offset, judged)

    def _judge_one(self, read: _Read, offset: int, judged: set[int]) -> None:
        first = self._first.get(offset)
        if offset in judged or (first is not None and first.at_ns <= read.ended_ns):
            return
        judged.add(offset)
        later = () if first is None else (first.line,)
        self._add(
            "claimed-unprocessed",
            f"nobody had processed {offset}, and it was done as the coordinator said, with the"
            f" stable offset {read.stable},",
            read.line,
            *later,
        )

    def _judge_claims(self, reads: Sequence[_Read]) -> None:
        """Whether each read has all claims that were answered before it began."""
        claims = sorted(self._place.claimed, reverse=True)
        pending: dict[int, _Claimed] = {}
        for read in reads:
            while claims and claims[-1].ended_ns < read.invoked_ns:
                claim = claims.pop()
                pending.setdefault(claim.offset, claim)
            for offset, claim in list(pending.items()):
                if read.covers(offset, claim.slot):
                    if offset < read.stable:
                        del pending[offset]
                    continue
                del pending[offset]
                self._add(
                    "claim-lost",
                    f"{offset}, which was claimed, isn't done any more, with the stable offset"
                    f" {read.stable},",
                    claim.line,
                    read.line,
                )

    def _judge_stable(self, reads: Sequence[_Read]) -> None:
        """Against the highest that was read, or committed by an offset, before."""
        known = [(each.ended_ns, each.stable, each.line) for each in reads]
        known += self._place.committed
        known.sort(reverse=True)
        highest, line = -1, -1
        for read in reads:
            while known and known[-1][0] < read.invoked_ns:
                _, stable, at = known.pop()
                if stable > highest:
                    highest, line = stable, at
            if read.stable < highest:
                self._add(
                    "stable-back",
                    f"the stable offset was {highest}, and then {read.stable},",
                    line,
                    read.line,
                )

    def _judge_repeats(self, slots: Mapping[int, int]) -> None:
        below = self._done_below()
        claimed = {each.offset: each for each in sorted(self._place.claimed, reverse=True)}
        for read in sorted(self._place.reads, key=lambda each: each.ended_ns, reverse=True):
            for low, high, first, last in read.claims:
                for offset in range(first, last + 1):
                    slot = slots.get(offset, -1)
                    known = claimed.get(offset)
                    if low <= slot <= high and (known is None or known.ended_ns > read.ended_ns):
                        claimed[offset] = _Claimed(read.ended_ns, offset, slot, read.line)
        for each in sorted(self._place.processed):
            done = [below[each.offset]] if each.offset in below else []
            if each.process in self._sharing and each.offset in claimed:
                done.append(claimed[each.offset][::3])
            if not done or min(done)[0] >= each.polled_ns or self._may_go_on(each):
                continue
            self._add(
                "processed-anew",
                f"process {each.process} was handed {each.offset} out, which was done,",
                min(done)[1],
                each.line,
            )

    def _done_below(self) -> dict[int, tuple[int, int]]:
        """Offset -> since when, and by which line, it is known to lie below the stable offset."""
        known = [(each.ended_ns, each.stable, each.line) for each in self._place.reads]
        known += self._place.committed
        found: dict[int, tuple[int, int]] = {}
        for ended_ns, stable, line in sorted(known):
            for offset in range(len(found), stable):
                found[offset] = ended_ns, line
        return found

    def _may_go_on(self, processed: _Processed) -> bool:
        """Whether a member had all of the partition, and was replaced, maybe without knowing it.

        One that stood still may hear of what it was given after others were given it.
        """
        before = [each for each in self._place.given if each.at_ns < processed.at_ns]
        mine = [each for each in before if each.process == processed.process]
        return (
            bool(mine)
            and mine[-1].whole
            and any(
                each.came and (each.at_ns > mine[-1].at_ns or each.epoch > mine[-1].epoch)
                for each in before
            )
        )

    def _judge_end(self, reads: Sequence[_Read]) -> None:
        place = self._place
        last = [each for each in reads if each.invoked_ns > place.end_ns][-1:]
        for read in last:
            if read.stable < place.end:
                self._add(
                    "unfinished",
                    f"in the end the stable offset is {max(read.stable, 0)}, and the log ends with"
                    f" {place.end},",
                    place.end_line,
                    read.line,
                )


def record_key_of(value: str) -> str:
    """The key of the record that has this value; empty for none."""
    key, dot, _ = value.partition(".")
    return key if dot else ""

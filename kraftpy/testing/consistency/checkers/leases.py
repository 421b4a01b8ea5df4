"""Share groups: one lease at a time, what is done stays done, nothing is lost, deliveries count.

Rules:

* A lease is in force for certain from when its member has the answer to when it has found, for the
  last time before it ended, that its connection to the leader is still there, and that the leader
  leads in the same epoch. It ends when its time may be over, when its member says something of the
  record, with its connection, and with the leader's epoch: the next leader knows of no leases.
* What is known to be leased after an acceptance or a rejection was answered, is leased anew. Where
  a library asks for records by itself, it has asked for them since its member began, and no later.
* A release that was answered counts: the next delivery has a greater number.
* A delivery has a number for each one before it that its leader outlived, and one for itself. One
  that came to nobody's notice took a request whose sender gave it up, or was killed: it may still
  be carried out for a while. (Whose connection ends sooner, its leader has ended, and its leases.)
  Where a library makes the requests, there may be one when it gave up any, and when its member
  ends.
* The start of a group passes what was accepted or rejected (or may have been, for all that its
  member knows), and what was delivered as often as may be. It never goes back.
* Nobody else's word counts for a record that is leased for certain.
* In the end nothing is left: somebody has accepted all that was. Then the start is the end of the
  log, or what lies between them is finished, as the group says: that counts as passed.
* What a leader refused at once had no effect, as who makes its requests itself can tell by the
  partition's error (`REFUSED`); of all other errors nobody knows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.clients import ACCEPT, REJECT, RELEASE, RENEW
from kraftpy.testing.consistency.history import HistoryError
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

REFUSED = frozenset({"INVALID_RECORD_STATE", "INVALID_REQUEST"})
_MS = 1_000_000
_ROUNDED_NS = 5 * _MS
"""Brokers count in whole milliseconds."""
_LATE_NS = 10_000 * _MS
"""A node that stands still does so for 6 s at most, and a client waits for 5 s."""

_PROMISES = {
    "leased-twice": ("a record is leased to one member at a time", "held"),
    "done-again": ("what was accepted or rejected is never delivered again", "done"),
    "miscounted": ("each delivery counts, and none goes beyond the limit", "delivered"),
    "strange-word": ("what is leased to one, nobody else can speak for", "held"),
    "lost": ("a group passes only what was accepted, rejected or delivered too often", "passed"),
    "start-back": ("the start of a group never goes back", "starts"),
    "left-over": ("in the end all is done", "logs"),
}


class _Lease(NamedTuple):
    """An answer that leased something; `epoch` is -1 where it isn't known, and `link` then."""

    since_ns: int
    ended_ns: int
    process: int
    link: int
    node: int
    epoch: int
    lock_ns: int
    line: int


class _Delivery(NamedTuple):
    lease: _Lease
    number: int


class _Word(NamedTuple):
    """What somebody said of a record; `outcome` is that of its partition."""

    invoked_ns: int
    ended_ns: int
    process: int
    kind: int
    outcome: str
    line: int


class _Start(NamedTuple):
    """Where a group begins, as it said; `left`: how many records it hasn't finished, or -1."""

    ended_ns: int
    invoked_ns: int
    offset: int
    left: int
    line: int


class _Silence(NamedTuple):
    """From when to when a request for records may have been carried out without an answer."""

    since_ns: int
    until_ns: int


@dataclass(slots=True)
class _Place:
    """What a group did with a partition."""

    deliveries: dict[int, list[_Delivery]] = field(default_factory=dict)
    words: dict[int, list[_Word]] = field(default_factory=dict)
    starts: list[_Start] = field(default_factory=list)
    end: int = -1
    end_ns: int = NEVER
    end_line: int = -1


class LeaseChecker:
    """`limits` say of each group how often a record may be delivered."""

    def __init__(self, limits: Mapping[str, int], lock_ms: int) -> None:
        self._limits = limits
        self._lock_ns = lock_ms * _MS
        self._places: dict[tuple[str, str], _Place] = {}
        self._holds: dict[tuple[int, int], list[tuple[int, Mapping[str, int]]]] = {}
        """By process and link: when, and in which epochs."""
        self._silences: dict[str, list[_Silence]] = {}
        self._last_polls: dict[int, Operation] = {}
        """Of members of libraries, by process."""
        self._sent: dict[str, dict[int, tuple[int, int]]] = {}
        """Of each partition: offset -> when it was sent, and the line of that."""

    def observe(self, operation: Operation) -> None:
        value = operation.value
        match operation.f:
            case "lease":
                self._observe_lease(operation)
            case "acknowledge":
                self._observe_words(operation)
            case "hold" if operation.outcome == "ok":
                holds = self._holds.setdefault((operation.process, value["link"]), [])
                holds.append((operation.invoked_ns, value["epochs"]))
            case "starts" if operation.outcome == "ok":
                for key, (offset, left) in value["starts"].items():
                    at_ns = operation.ended_ns, operation.invoked_ns
                    start = _Start(*at_ns, offset, left, operation.line)
                    self._place(value["group"], key).starts.append(start)
            case "ends":
                for key, end in value["ends"].items():
                    place = self._place(value["group"], key)
                    place.end, place.end_ns = end, operation.invoked_ns
                    place.end_line = operation.line
            case "send":
                for key, _, *offset in value:
                    if offset and offset[0] is not None:
                        sent = self._sent.setdefault(key, {})
                        sent[offset[0]] = operation.invoked_ns, operation.line

    def _place(self, group: str, key: str) -> _Place:
        if type(self._limits.get(group)) is not int:
            raise HistoryError(f"the options don't say how often {group} is delivered a record")
        return self._places.setdefault((group, key), _Place())

    def _observe_lease(self, operation: Operation) -> None:
        asked, value = operation.asked, operation.value
        if "since" in asked:
            self._last_polls[operation.process] = operation
        silent_ns = operation.ended_ns - operation.invoked_ns
        if operation.outcome == "info" and silent_ns >= self._lock_ns - _ROUNDED_NS:
            self._unanswered(asked["group"], operation.invoked_ns, operation.ended_ns)
        if operation.outcome != "ok":
            return
        if value.get("gave_up"):
            before_ns = operation.invoked_ns - _LATE_NS
            self._unanswered(asked["group"], before_ns, operation.ended_ns)
        since_ns = asked.get("since", operation.invoked_ns)
        for key, runs in value["runs"].items():
            place = self._place(asked["group"], key)
            lease = _Lease(
                since_ns,
                operation.ended_ns,
                operation.process,
                value.get("link", -1),
                value.get("node", -1),
                value.get("epochs", {}).get(key, -1),
                value.get("lock_ms", 0) * _MS,
                operation.line,
            )
            for first, last, number in runs:
                for offset in range(first, last + 1):
                    place.deliveries.setdefault(offset, []).append(_Delivery(lease, number))

    def _unanswered(self, group: str, since_ns: int, ended_ns: int) -> None:
        until_ns = (since_ns if ended_ns == NEVER else ended_ns) + _LATE_NS
        self._silences.setdefault(group, []).append(_Silence(since_ns, until_ns))

    def _observe_words(self, operation: Operation) -> None:
        errors = operation.value.get("errors", {})
        refusals = REFUSED if "link" in operation.asked else ()
        for key, said in operation.asked["said"].items():
            place = self._place(operation.asked["group"], key)
            outcome = operation.outcome
            if key in errors:
                outcome = "fail" if errors[key] in refusals else "info"
            for offset, kind in said:
                word = _Word(
                    operation.invoked_ns,
                    operation.ended_ns,
                    operation.process,
                    kind,
                    outcome,
                    operation.line,
                )
                place.words.setdefault(offset, []).append(word)

    def verdicts(self) -> Iterator[Verdict]:
        found = {name: Findings() for name in _PROMISES}
        counts = dict.fromkeys((count for _, count in _PROMISES.values()), 0)
        while self._last_polls:
            _, poll = self._last_polls.popitem()
            self._unanswered(poll.asked["group"], poll.invoked_ns, poll.ended_ns)
        for holds in self._holds.values():
            holds.sort(key=lambda each: each[0])
        for (group, key), place in self._places.items():
            judge = _Judge(group, key, place, found, counts, self._limits[group])
            judge.judge(self._holds, self._silences.get(group, []), self._sent.get(key, {}))
        for name, (promise, count) in _PROMISES.items():
            first = {count: counts[count]}
            yield found[name].verdict(name, promise, "nothing was found", {**first, **counts})


class _Judge:
    """One place."""

    def __init__(
        self,
        group: str,
        key: str,
        place: _Place,
        found: Mapping[str, Findings],
        counts: dict[str, int],
        limit: int,
    ) -> None:
        self._key = key
        self._name = f"{group}/{key}"
        self._where = f"{key} in group {group}"
        self._place = place
        self._found = found
        self._counts = counts
        self._limit = limit
        self._holds: Mapping[tuple[int, int], list[tuple[int, Mapping[str, int]]]] = {}
        self._silences: list[_Silence] = []
        self._sent: Mapping[int, tuple[int, int]] = {}

    def judge(
        self,
        holds: Mapping[tuple[int, int], list[tuple[int, Mapping[str, int]]]],
        silences: list[_Silence],
        sent: Mapping[int, tuple[int, int]],
    ) -> None:
        self._holds, self._silences, self._sent = holds, silences, sent
        for offset, deliveries in self._place.deliveries.items():
            words = self._place.words.get(offset, [])
            self._judge_leases(offset, deliveries, words)
            self._judge_done(offset, deliveries, words)
            self._judge_counts(offset, deliveries, words)
        self._judge_starts()
        self._judge_end()

    def _add(self, name: str, summary: str, *lines: int) -> None:
        self._found[name].add(f"{summary} of {self._where}", lines, self._name)

    # -- leases in force

    def _judge_leases(self, offset: int, deliveries: list[_Delivery], words: list[_Word]) -> None:
        held = [(each.lease, self._held_until(each.lease, words)) for each in deliveries]
        self._counts["held"] += sum(until > lease.ended_ns for lease, until in held)
        for index, (one, one_until) in enumerate(held):
            for other, other_until in held[index + 1 :]:
                if (one.node, one.epoch) != (other.node, other.epoch) or one.epoch < 0:
                    continue
                first_may_be_one = one.since_ns <= other.ended_ns
                first_may_be_other = other.since_ns <= one.ended_ns
                if (first_may_be_one and other.ended_ns > one_until) or (
                    first_may_be_other and one.ended_ns > other_until
                ):
                    continue
                self._add(
                    "leased-twice",
                    f"{offset} was leased to process {one.process} and to process"
                    f" {other.process}, by node {one.node} in epoch {one.epoch},",
                    one.line,
                    other.line,
                )
        for word in words:
            if word.outcome != "ok":
                continue
            for lease, until in held:
                is_within = lease.ended_ns <= word.invoked_ns and word.ended_ns <= until
                if is_within and lease.process != word.process:
                    self._add(
                        "strange-word",
                        f"process {word.process} spoke for {offset}, which process"
                        f" {lease.process} had,",
                        lease.line,
                        word.line,
                    )

    def _held_until(self, lease: _Lease, words: list[_Word]) -> int:
        """Until when a lease was in force for certain; when it was answered if nobody looked."""
        if lease.epoch < 0:
            return lease.ended_ns
        limit_ns = lease.since_ns + lease.lock_ns - _ROUNDED_NS
        mine = sorted(
            each for each in words
            if each.process == lease.process and each.invoked_ns >= lease.since_ns
        )  # fmt: skip
        for word in mine:
            if word.invoked_ns > limit_ns:
                break
            if word.kind != RENEW:
                limit_ns = word.invoked_ns
            elif word.outcome == "ok":
                limit_ns = max(limit_ns, word.invoked_ns + lease.lock_ns - _ROUNDED_NS)
        holds = self._holds.get((lease.process, lease.link), [])
        for at_ns, epochs in reversed(holds[: bisect_right(holds, limit_ns, key=lambda h: h[0])]):
            if at_ns < lease.ended_ns:
                break
            if epochs.get(self._key) == lease.epoch:
                return at_ns
        return lease.ended_ns

    # -- what is done, and how often

    def _judge_done(self, offset: int, deliveries: list[_Delivery], words: list[_Word]) -> None:
        done = [each for each in words if each.outcome == "ok" and each.kind in (ACCEPT, REJECT)]
        if not done:
            return
        self._counts["done"] += 1
        first = min(done, key=lambda each: each.ended_ns)
        for delivery in deliveries:
            if delivery.lease.since_ns > first.ended_ns:
                self._add(
                    "done-again",
                    f"{offset} was {'accepted' if first.kind == ACCEPT else 'rejected'} by process"
                    f" {first.process}, and delivered to process {delivery.lease.process}",
                    first.line,
                    delivery.lease.line,
                )

    def _judge_counts(self, offset: int, deliveries: list[_Delivery], words: list[_Word]) -> None:
        self._counts["delivered"] += len(deliveries)
        released = self._released(deliveries, words)
        for lease, number in deliveries:
            if not 1 <= number <= self._limit:
                self._add(
                    "miscounted",
                    f"{offset} was delivered for the {number}th time of {self._limit}",
                    lease.line,
                )
            before = [each for each in released if each[0] < lease.since_ns and each[1] >= number]
            if before:
                _, counted, lines = before[0]
                self._add(
                    "miscounted",
                    f"{offset} was released after {counted} deliveries, and then delivered for"
                    f" the {number}th time",
                    *lines,
                    lease.line,
                )
            earlier = sum(each.lease.since_ns < lease.ended_ns for each in deliveries) - 1
            if number - 1 > earlier + self._unnoticed(self._sent_ns(offset), lease.ended_ns):
                self._add(
                    "miscounted",
                    f"{offset} was delivered for the {number}th time, and {earlier} times before,",
                    *(each.lease.line for each in deliveries),
                )

    def _released(
        self, deliveries: list[_Delivery], words: list[_Word]
    ) -> list[tuple[int, int, tuple[int, ...]]]:
        """Of answered releases: since when they count, after how many deliveries, and lines."""
        found: list[tuple[int, int, tuple[int, ...]]] = []
        for word in words:
            if word.kind != RELEASE or word.outcome != "ok":
                continue
            mine = [
                each
                for each in deliveries
                if each.lease.process == word.process and each.lease.ended_ns <= word.invoked_ns
            ]
            if mine:
                # Only the last of them can still have been in force.
                last = max(mine, key=lambda each: each.lease.ended_ns)
                found.append((word.ended_ns, last.number, (last.lease.line, word.line)))
        return found

    def _sent_ns(self, offset: int) -> int:
        return self._sent.get(offset, (0, -1))[0]

    def _unnoticed(self, since_ns: int, until_ns: int) -> int:
        """How many deliveries there may have been meanwhile that nobody knows of."""
        return sum(
            each.since_ns <= until_ns and each.until_ns >= since_ns for each in self._silences
        )

    # -- how far the group is

    def _judge_starts(self) -> None:
        passed = 0
        highest, line = -1, -1
        known = sorted(self._place.starts, reverse=True)
        end = max([self._place.end, *(each + 1 for each in (*self._place.words, *self._sent))])
        for start in sorted(self._place.starts):
            self._counts["starts"] += 1
            for offset in range(passed, min(start.offset, end)):
                self._judge_passed(offset, start)
            passed = max(passed, start.offset)
        for start in sorted(self._place.starts, key=lambda each: each.invoked_ns):
            while known and known[-1].ended_ns < start.invoked_ns:
                before = known.pop()
                if before.offset > highest:
                    highest, line = before.offset, before.line
            if start.offset < highest:
                self._add(
                    "start-back",
                    f"the start was {highest}, and then {start.offset},",
                    line,
                    start.line,
                )

    def _judge_passed(self, offset: int, start: _Start) -> None:
        """An offset that lies below a start that was read."""
        self._counts["passed"] += 1
        for word in self._place.words.get(offset, []):
            may_be_done = word.kind in (ACCEPT, REJECT) and word.outcome != "fail"
            if may_be_done and word.invoked_ns < start.ended_ns:
                return
        deliveries = [
            each
            for each in self._place.deliveries.get(offset, [])
            if each.lease.since_ns < start.ended_ns
        ]
        most = max((each.number for each in deliveries), default=0)
        last_ns = max((each.lease.ended_ns for each in deliveries), default=self._sent_ns(offset))
        if most + self._unnoticed(last_ns, start.ended_ns) >= self._limit:
            return
        self._add(
            "lost",
            f"nobody has accepted or rejected {offset}, delivered {most} times of {self._limit},"
            f" and the group begins at {start.offset}",
            self._sent.get(offset, (0, -1))[1],
            *(each.lease.line for each in deliveries),
            start.line,
        )

    def _judge_end(self) -> None:
        place = self._place
        if place.end < 1:
            return
        self._counts["logs"] += 1
        last = max(place.starts, key=lambda each: each.ended_ns, default=None)
        if last is None or last.invoked_ns < place.end_ns:
            return  # not known, which is not for this checker to say
        if last.offset < place.end and not last.left:
            for offset in range(last.offset, place.end):
                self._judge_passed(offset, last)
        elif last.offset < place.end:
            self._add(
                "left-over",
                f"{last.offset} to {place.end - 1} are not done in the end",
                place.end_line,
                last.line,
            )

"""Values of a queue: is what was acknowledged there, once, where it was said to be, and no other?

The names are those of Jepsen's Kafka workload. Promises, and when they aren't judged:

* `lost-write` needs proof: a reader went through the offset of the acknowledged value, or a
  read of the whole log (`drain`), begun after the acknowledgement, ended below it.
* `dirty-read` is of a value that was cut off when it had been read: the log ends before it.
* `unseen` is everything else that was acknowledged and never read. It is wrong if the log was
  drained, unknown if it wasn't.
* `duplicate` is promised to idempotent producers (KIP-98) only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from kraftpy.testing.consistency.checkers.log_index import (
    ACKNOWLEDGED,
    FAILED,
    NOT_SENT,
    UNKNOWN,
    Log,
    LogIndex,
)
from kraftpy.testing.consistency.verdicts import Findings, Verdict


def value_verdicts(index: LogIndex, *, idempotence: bool) -> Iterator[Verdict]:
    """Verdicts on what an index knows; `idempotence` is what the producers were set to."""
    yield _inconsistent_offsets(index)
    yield _duplicates(index, idempotence)
    yield _aborted_reads(index)
    yield _phantom_reads(index)
    yield _dirty_reads(index)
    yield from _missing(index)


def _inconsistent_offsets(index: LogIndex) -> Verdict:
    findings = Findings()
    for log in index.logs.values():
        for finding in log.conflicts.smallest():
            findings.add(finding.summary, finding.lines, finding.key)
    counts = {"offsets": sum(len(log.at) for log in index.logs.values())}
    return findings.verdict(
        "inconsistent-offsets",
        "an offset holds one value, whoever is told of it",
        "everybody was told the same of every offset",
        counts,
    )


def _duplicates(index: LogIndex, idempotence: bool) -> Verdict:
    promise = "what an idempotent producer sent is in the log once"
    findings = Findings()
    for log in index.logs.values():
        for row, (acked, read) in enumerate(zip(log.acked, log.read, strict=True)):
            places = {read: log.read_line[row]} if read >= 0 else {}
            if acked >= 0:
                places.setdefault(acked, log.send_line[row])
            if row in log.elsewhere:
                places = dict(log.elsewhere[row]) | places
            if len(places) > 1:
                where = " and ".join(map(str, sorted(places)[:5]))
                findings.add(
                    f"{log.value[row]!r} of {log.key} is at offsets {where}",
                    (log.send_line[row], *places.values()),
                    log.key,
                )
    counts = {"values": sum(len(log.value) for log in index.logs.values())}
    if not idempotence:
        explanation = (
            f"{findings.count} values are in the log more than once, which retries of a producer"
            " that isn't idempotent may do"
        )
        counts["duplicates"] = findings.count
        return Verdict("duplicate", True, promise, explanation, counts)
    return findings.verdict("duplicate", promise, "no value is in a log twice", counts)


def _aborted_reads(index: LogIndex) -> Verdict:
    findings = Findings()
    failed = 0
    for log in index.logs.values():
        for row in _rows(log, FAILED):
            failed += 1
            if log.read[row] >= 0:
                findings.add(
                    f"{log.value[row]!r} was read at offset {log.read[row]} of {log.key},"
                    " and its send failed",
                    (log.send_line[row], log.read_line[row]),
                    log.key,
                )
    return findings.verdict(
        "aborted-read",
        "a value whose send failed is never read",
        "nothing was read of what failed",
        {"failed sends": failed},
    )


def _phantom_reads(index: LogIndex) -> Verdict:
    findings = Findings()
    for log in index.logs.values():
        for row, read in enumerate(log.read):
            if read < 0:
                continue
            if log.state[row] == NOT_SENT:
                said = "nobody sent it"
            elif log.read_ns[row] < log.invoked_ns[row]:
                said = "it was sent only afterwards"
            else:
                continue
            findings.add(
                f"{log.value[row]!r} was read at offset {read} of {log.key}, and {said}",
                (log.read_line[row], log.send_line[row]),
                log.key,
            )
    return findings.verdict(
        "phantom-read",
        "what is read was sent before",
        "everything read had been sent",
        {"records read": index.reads},
    )


def _dirty_reads(index: LogIndex) -> Verdict:
    findings = Findings()
    for log in index.logs.values():
        reads = _ReadsOf(log)
        for row, offset in enumerate(log.read):
            drain = reads.drain_after(log.read_ns[row]) if offset >= 0 else None
            if drain is not None and offset >= drain[2]:
                findings.add(
                    f"{log.value[row]!r} was read at offset {offset} of {log.key}, which ends at"
                    f" {drain[2]} now",
                    (log.send_line[row], log.read_line[row], drain[3]),
                    log.key,
                )
    return findings.verdict(
        "dirty-read",
        "what was read stays in the log",
        "no log became shorter than what was read of it",
        {"records read": index.reads},
    )


def _missing(index: LogIndex) -> Iterator[Verdict]:
    """`lost-write` and `unseen`: acknowledged, and no reader ever saw it."""
    lost, unseen = Findings(), Findings()
    acknowledged = deleted = undecided = 0
    for log in index.logs.values():
        reads = _ReadsOf(log)
        rows = list(_rows(log, ACKNOWLEDGED))
        acknowledged += len(rows)
        for row in rows:
            if log.read[row] >= 0:
                continue
            offset, line = log.acked[row], log.send_line[row]
            name = f"{log.value[row]!r}, acknowledged at offset {offset} of {log.key},"
            drain = reads.drain_after(log.ended_ns[row])
            if drain is not None and 0 <= offset < drain[1]:
                deleted += 1  # by retention or DeleteRecords, before the log was read
            elif drain is not None and offset >= drain[2]:
                lost.add(
                    f"{name} is beyond the end of the log, {drain[2]}", (line, drain[3]), log.key
                )
            elif reads.went_through(offset):
                witness = reads.witness(offset)
                lost.add(f"{name} isn't there: readers went through it", (line, *witness), log.key)
            elif drain is not None:
                where = "with no offset" if offset == UNKNOWN else f"at offset {offset}"
                unseen.add(
                    f"{log.value[row]!r}, acknowledged {where}, was never read from {log.key}",
                    (line, drain[3]),
                    log.key,
                )
            else:
                undecided += 1
    counts = {"acknowledged": acknowledged, "deleted before the end": deleted}
    yield lost.verdict(
        "lost-write",
        "what was acknowledged is still there when others are read from behind it",
        "no reader went past an acknowledged value without seeing it",
        counts,
    )
    promise = "everything acknowledged has been read by the end"
    if undecided and not unseen.count:
        explanation = (
            f"{undecided} acknowledged values were never read, but their logs weren't read to the"
            " end after that either"
        )
        yield Verdict("unseen", None, promise, explanation, {**counts, "never read": undecided})
    else:
        yield unseen.verdict("unseen", promise, "all of it was read", counts)


class _ReadsOf:
    """What readers of one log went through."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._drains = sorted(log.drained)
        for _, start, end, _ in self._drains:
            if end > start:
                log.covered.add(start, end - 1)
        self._ranges = log.covered.merged()
        self._firsts = [first for first, _ in self._ranges]
        self._offsets: list[int] = []

    def drain_after(self, moment_ns: int) -> tuple[int, int, int, int] | None:
        """The last read of the whole log, if it began after this moment."""
        return self._drains[-1] if self._drains and self._drains[-1][0] > moment_ns else None

    def went_through(self, offset: int) -> bool:
        if offset < 0:
            return False
        index = bisect_right(self._firsts, offset) - 1
        return index >= 0 and self._ranges[index][1] >= offset

    def witness(self, offset: int) -> list[int]:
        """The operation that read what comes next."""
        log = self._log
        if not self._offsets:
            self._offsets = sorted(offset for offset in log.read if offset >= 0)
        after = bisect_right(self._offsets, offset)
        if after == len(self._offsets):
            return [line for _, start, end, line in self._drains[-1:] if start <= offset < end]
        return [log.read_line[log.rows[log.at[self._offsets[after]]]]]


def _rows(log: Log, state: int) -> Iterator[int]:
    return (row for row, found in enumerate(log.state) if found == state)

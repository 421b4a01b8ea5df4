"""Groups: a partition has one owner at a time, and what is committed was processed.

Rules:

* A member owns a partition from its `assigned` to the beginning of its `revoked` or to its `lost`.
  Whoever kills a client notes `gone` in its name. An owner of which none is known owns until its
  last sign of life.
* Two owners may overlap only if the older one (of the smaller epoch) lost its partitions: it was
  fenced and doesn't know yet. Not every library tells; whoever has another member id at its next
  assignment has lost what it had. One that was killed, or stood still, may have been fenced if the
  coordinator can't have heard of it for a session timeout.
* Two owners in one epoch never may overlap (KIP-848; a generation of a classic group counts as
  epoch), unless one is the same static member (KIP-345) as the other.
* A commit must be refused of what a member never had, of an epoch that another member's assignment
  had replaced before, and, whatever the epochs, while a member has the partition that got it later.
* A member begins with what its group has committed, not below.
* An epoch of -1 isn't known, and what depends on it isn't judged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from kraftpy.frozen import NamedTuple
from kraftpy.testing.consistency.checkers.log_index import Intervals
from kraftpy.testing.consistency.operations import NEVER, Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_Place = tuple[str, str]
"""Group and key."""


@dataclass(slots=True)
class _Ownership:
    process: int
    epoch: int
    instance: str
    since_ns: int
    line: int
    until_ns: int = NEVER
    ended_by: str = ""
    end_line: int = -1


class _Commit(NamedTuple):
    """One that was accepted."""

    invoked_ns: int
    process: int
    epoch: int
    offset: int
    line: int
    ended_ns: int


class _Processed(NamedTuple):
    at_ns: int
    first: int
    line: int


@dataclass(slots=True)
class _Partition:
    """What a group did with a partition."""

    owners: list[_Ownership] = field(default_factory=list)
    processed: Intervals = field(default_factory=Intervals)
    work: dict[int, list[_Processed]] = field(default_factory=dict)
    """What each process has processed, in order."""
    commits: list[_Commit] = field(default_factory=list)
    unowned: list[tuple[int, int]] = field(default_factory=list)
    """(process, line) of what was processed without owning."""


@dataclass(slots=True)
class _Life:
    """A process as a member of a group; `owned` are its ownerships under this member id."""

    member_id: str = ""
    assigned_ns: int = -1
    owned: list[_Ownership] = field(default_factory=list)


class OwnershipChecker:
    """`fenced_after_s` is how long a coordinator waits for a member at least; 0 if unknown.

    Members that `join_silently` have what they keep while they join, and send no heartbeats then:
    one that stands still may have been silent before.
    """

    def __init__(self, fenced_after_s: float = 0.0, *, join_silently: bool = False) -> None:
        self._fenced_after_ns = fenced_after_s * 1e9
        self._join_silently = join_silently
        self._partitions: dict[_Place, _Partition] = {}
        self._lives: dict[tuple[str, int], _Life] = {}
        self._frozen: dict[int, list[tuple[float, int]]] = {}
        """When a process stood still, from and to."""
        self._contacts: dict[int, list[int]] = {}
        """When a coordinator had not forgotten a process, or had just heard of it."""
        self._last_sign_ns: dict[int, int] = {}
        self._sent: dict[str, list[tuple[int, int]]] = {}
        self._assignments = 0
        self._processed = 0

    def observe(self, operation: Operation) -> None:
        process, value = operation.process, operation.value
        sign_ns = operation.invoked_ns if operation.ended_ns == NEVER else operation.ended_ns
        self._last_sign_ns[process] = max(sign_ns, self._last_sign_ns.get(process, 0))
        match operation.f:
            case "send":
                for record in value:
                    if len(record) == 3 and record[2] is not None:
                        self._sent.setdefault(record[0], []).append((record[2], operation.line))
            case "assigned" if operation.outcome == "ok":
                self._observe_assigned(operation)
            case "revoked" | "lost" | "gone":
                for key in value["keys"]:
                    owner = self._owned(value["group"], key, process)
                    if owner is not None:
                        owner.until_ns, owner.ended_by = operation.invoked_ns, operation.f
                        owner.end_line = operation.line
            case "frozen":
                began_ns = operation.invoked_ns - value["ms"] * 1e6
                self._frozen.setdefault(process, []).append((began_ns, operation.invoked_ns))
            case "processed" if operation.outcome != "fail":
                self._observe_processed(operation)
            case "commit" if operation.outcome == "ok":
                asked = operation.asked
                epoch, offset = asked.get("epoch", -1), asked["offset"]
                begun_ns, ended_ns = operation.invoked_ns, operation.ended_ns
                self._partition(asked["group"], asked["key"]).commits.append(
                    _Commit(begun_ns, process, epoch, offset, operation.line, ended_ns)
                )
                self._contacts.setdefault(process, []).append(begun_ns)

    def _partition(self, group: str, key: str) -> _Partition:
        return self._partitions.setdefault((group, key), _Partition())

    def _owned(self, group: str, key: str, process: int) -> _Ownership | None:
        """What this process owns now; the newest one is at the end."""
        for owner in reversed(self._partition(group, key).owners):
            if owner.process == process:
                return owner if owner.until_ns == NEVER else None
        return None

    def _observe_assigned(self, operation: Operation) -> None:
        value, process, at_ns = operation.value, operation.process, operation.invoked_ns
        life = self._live_on(value["group"], process, value.get("member", ""), at_ns)
        for key in value["keys"]:
            if self._owned(value["group"], key, process) is None:
                self._assignments += 1
                instance = value.get("instance", "")
                owner = _Ownership(process, value["epoch"], instance, at_ns, operation.line)
                self._partition(value["group"], key).owners.append(owner)
                life.owned.append(owner)
        self._contacts.setdefault(process, []).append(at_ns)

    def _live_on(self, group: str, process: int, member_id: str, at_ns: int) -> _Life:
        """The process as it is now; who is somebody else has lost what it had to the end."""
        life = self._lives.setdefault((group, process), _Life())
        if life.member_id not in ("", member_id):
            for owner in life.owned:
                if owner.until_ns >= life.assigned_ns:
                    owner.until_ns, owner.ended_by = min(owner.until_ns, at_ns), "lost"
            life.owned.clear()
        life.member_id, life.assigned_ns = member_id, at_ns
        return life

    def _observe_processed(self, operation: Operation) -> None:
        value = operation.value
        self._processed += value["last"] - value["first"] + 1
        partition = self._partition(value["group"], value["key"])
        partition.processed.add(value["first"], value["last"])
        partition.work.setdefault(operation.process, []).append(
            _Processed(operation.invoked_ns, value["first"], operation.line)
        )
        if self._owned(value["group"], value["key"], operation.process) is None:
            partition.unowned.append((operation.process, operation.line))

    def verdicts(self) -> Iterator[Verdict]:
        counts = {"assignments": self._assignments, "partitions": len(self._partitions)}
        yield self._double_ownership(counts)
        yield self._stale_commits()
        yield self._starts()
        yield self._unowned()
        yield self._unprocessed()

    def _double_ownership(self, counts: dict[str, int]) -> Verdict:
        findings = Findings()
        zombies = 0
        for (group, key), partition in self._partitions.items():
            holding: list[_Ownership] = []
            first_in_epoch: dict[int, _Ownership] = {}
            for owner in sorted(partition.owners, key=lambda each: each.since_ns):
                holding = [each for each in holding if self._end(each) > owner.since_ns]
                rival = first_in_epoch.setdefault(owner.epoch, owner)
                clash = owner.epoch >= 0 and _are_two(rival, owner)
                if clash:
                    holding = [each for each in holding if each is not rival]
                    _add_clash(findings, group, key, rival, owner, f"in epoch {owner.epoch}")
                for each in holding:
                    if not _are_two(each, owner):
                        continue
                    older = each if _is_older(each, owner) else owner
                    if older.ended_by == "lost" or self._was_fenced(older, owner.since_ns):
                        zombies += 1
                    else:
                        _add_clash(findings, group, key, each, owner, "at the same time")
                holding.append(owner)
        return findings.verdict(
            "double-ownership",
            "a partition has one owner in its group at a time",
            "no two members owned a partition at the same time",
            {**counts, "fenced owners that didn't know yet": zombies},
        )

    def _end(self, owner: _Ownership) -> int:
        if owner.until_ns != NEVER:
            return owner.until_ns
        return self._last_sign_ns[owner.process]

    def _was_fenced(self, owner: _Ownership, now_ns: int) -> bool:
        """Whether a member that was killed or stood still may have been thrown out unaware."""
        gone, least_ns = owner.ended_by == "gone", self._fenced_after_ns
        frozen = self._frozen.get(owner.process, ())
        if owner.since_ns >= now_ns:  # it noted late what was over by then
            return gone or any(
                began_ns < owner.since_ns and ended_ns - began_ns >= least_ns
                for began_ns, ended_ns in frozen
            )
        heard_ns = max(at_ns for at_ns in self._contacts[owner.process] if at_ns <= now_ns)
        if self._join_silently and now_ns - heard_ns >= least_ns:
            gone = gone or any(began_ns <= now_ns <= ended_ns for began_ns, ended_ns in frozen)
        return (gone and now_ns - heard_ns >= least_ns) or any(
            heard_ns <= began_ns <= now_ns - least_ns for began_ns, _ in frozen
        )

    def _stale_commits(self) -> Verdict:
        findings = Findings()
        accepted = 0
        for (group, key), partition in self._partitions.items():
            for detail, lines in self._late_commits(partition):
                findings.add(f"{detail} {key} in group {group}", lines, f"{group}/{key}")
            owners = sorted(
                (each for each in partition.owners if each.epoch >= 0),
                key=lambda each: each.since_ns,
            )
            passed = 0
            newest: _Ownership | None = None
            for invoked_ns, process, epoch, offset, line, _ in sorted(partition.commits):
                accepted += 1
                while passed < len(owners) and owners[passed].since_ns < invoked_ns:
                    if newest is None or owners[passed].epoch > newest.epoch:
                        newest = owners[passed]
                    passed += 1
                if newest is not None and newest.process != process and 0 <= epoch < newest.epoch:
                    findings.add(
                        f"process {process} committed {offset} for {key} in group {group} with"
                        f" epoch {epoch}; process {newest.process} had it since {newest.epoch}",
                        (newest.line, line),
                        f"{group}/{key}",
                    )
        return findings.verdict(
            "stale-commit",
            "a member that lost a partition can't commit for it any more",
            "every accepted commit was its owner's",
            {"accepted commits": accepted},
        )

    def _late_commits(self, partition: _Partition) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Commits by whom the partition isn't, as time tells and not the epochs."""
        owners = sorted(partition.owners, key=lambda each: each.since_ns)
        for commit in partition.commits:
            before = [each for each in owners if each.since_ns < commit.invoked_ns]
            mine = [each for each in before if each.process == commit.process]
            what = f"process {commit.process} committed {commit.offset}"
            if not mine:
                yield f"{what} without ever having had", (commit.line,)
                continue
            for other in before:
                if (
                    other.since_ns > mine[-1].since_ns
                    and _are_two(mine[-1], other)
                    and _is_older(mine[-1], other)
                    and self._end(other) > commit.ended_ns
                ):
                    detail = f"{what} when process {other.process} had been given"
                    yield detail, (other.line, commit.line)

    def _starts(self) -> Verdict:
        findings = Findings()
        starts = 0
        for (group, key), partition in self._partitions.items():
            commits = sorted(partition.commits, key=lambda each: each.ended_ns)
            moments = [each.ended_ns for each in commits]
            highest = list(accumulate((each.offset for each in commits), max))
            for owner in partition.owners:
                work = partition.work.get(owner.process, [])
                place = bisect_left(work, (owner.since_ns,))
                acknowledged = bisect_right(moments, owner.since_ns)
                if place == len(work) or work[place].at_ns > self._end(owner):
                    continue
                starts += 1
                if acknowledged and work[place].first < highest[acknowledged - 1]:
                    findings.add(
                        f"process {owner.process} got {key} in group {group} and began with"
                        f" {work[place].first}; {highest[acknowledged - 1]} had been committed",
                        (owner.line, work[place].line),
                        f"{group}/{key}",
                    )
        return findings.verdict(
            "early-start",
            "a member begins with what its group has committed",
            "nobody began below what had been committed",
            {"beginnings": starts},
        )

    def _unowned(self) -> Verdict:
        findings = Findings()
        for (group, key), partition in self._partitions.items():
            for process, line in partition.unowned:
                findings.add(
                    f"process {process} processed {key} in group {group} without owning it",
                    (line,),
                    f"{group}/{key}",
                )
        return findings.verdict(
            "unowned-processing",
            "a member processes only what it owns",
            "everything was processed by an owner",
            {"processed records": self._processed},
        )

    def _unprocessed(self) -> Verdict:
        findings = Findings()
        below = 0
        for (group, key), partition in self._partitions.items():
            if not partition.commits:
                continue
            last = max(partition.commits, key=lambda each: each.offset)
            committed, commit_line = last.offset, last.line
            sent = sorted(self._sent.get(key, ()))
            sent = sent[: bisect_left(sent, (committed, -1))]
            below += len(sent)
            ranges = partition.processed.merged()
            firsts = [first for first, _ in ranges]
            for offset, line in sent:
                place = bisect_right(firsts, offset) - 1
                if place < 0 or ranges[place][1] < offset:
                    findings.add(
                        f"offset {offset} of {key} was never processed in group {group}, which"
                        f" committed {committed}",
                        (line, commit_line),
                        f"{group}/{key}",
                    )
        return findings.verdict(
            "committed-unprocessed",
            "what lies below a committed offset has been processed by somebody",
            "nothing below a committed offset was left out",
            {"records below": below},
        )


def _are_two(one: _Ownership, other: _Ownership) -> bool:
    if one.process == other.process:
        return False
    return not one.instance or one.instance != other.instance


def _is_older(one: _Ownership, other: _Ownership) -> bool:
    """By epoch where both are known, else by time; `one` began first."""
    return one.epoch <= other.epoch if one.epoch >= 0 and other.epoch >= 0 else True


def _add_clash(
    findings: Findings, group: str, key: str, one: _Ownership, other: _Ownership, when: str
) -> None:
    findings.add(
        f"processes {one.process} and {other.process} both owned {key} in group {group} {when}",
        (one.line, other.line, one.end_line, other.end_line),
        f"{group}/{key}",
    )

"""Groups at rest, as a checker finds them: nobody moves without need, all settle, nothing is left.

Rules:

* Between `calm` and `uproar` nothing happens to a group but that its coordinator moves: no member
  is assigned anything, or gives anything up.
* A group is `settled` when its coordinator and its members say the same, and each partition has
  one owner, or where members share partitions, several; the run notes what the coordinator said, or
  that it did not come to that in time.
* The `ends` of the logs are noted when nothing is sent any more and the groups had time: all that
  lies below was processed in each group. And whenever an offset is committed, all below it was.
* In the end all members are told to leave: their processes end by themselves, not before, and what
  the coordinator still has as members then is noted as `left`.
* A run that does all this says so in its header; if one of the notes is missing then, nothing is
  known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kraftpy.testing.consistency.checkers.log_index import Intervals
from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict

_NAMED_MAX = 5


class RestChecker:
    """`expected` is whether the run has its groups come to rest, `shared` whether several members
    may have parts of one partition."""

    def __init__(self, *, expected: bool, shared: bool = False) -> None:
        self._expected = expected
        self._shared = shared
        self._calm: dict[str, int] = {}
        """Groups that are left in peace now, and the line that says so."""
        self._calm_times = 0
        self._moves = Findings()
        self._owned: dict[str, dict[int, dict[str, int]]] = {}
        """What each process of a group has, and the line of its assignment."""
        self._member_ids: dict[tuple[str, int], str] = {}
        self._settled = 0
        self._unsettled = Findings()
        self._processed: dict[tuple[str, str], Intervals] = {}
        self._records = 0
        self._ends: list[tuple[str, str, int, int]] = []
        self._skipped = Findings()
        self._left = 0
        self._stayed = Findings()

    def observe(self, operation: Operation) -> None:
        value, line = operation.value, operation.line
        match operation.f:
            case "assigned":
                self._observe_move(operation)
                group = self._owned.setdefault(value["group"], {})
                group.setdefault(operation.process, {}).update(dict.fromkeys(value["keys"], line))
                self._member_ids[value["group"], operation.process] = value.get("member", "")
            case "revoked" | "lost" | "gone":
                self._observe_move(operation)
                owned = self._owned.get(value["group"], {}).get(operation.process, {})
                for key in value["keys"]:
                    owned.pop(key, None)
            case "processed" if operation.outcome != "fail":
                place = value["group"], value["key"]
                self._processed.setdefault(place, Intervals()).add(value["first"], value["last"])
            case "commit" if operation.outcome == "ok" and self._expected:
                self._observe_commit(operation)
            case "calm":
                self._calm_times += 1
                self._calm[value["group"]] = line
            case "uproar":
                self._calm.pop(value["group"], None)
            case "settled":
                self._settled += 1
                self._observe_settled(value, line)
            case "unsettled":
                summary = f"group {value['group']} did not come to rest: {value['detail']}"
                self._unsettled.add(summary, (line,), value["group"])
            case "ends":
                for key, end in value["ends"].items():
                    self._ends.append((value["group"], key, end, line))
                    self._records += end
            case "left":
                self._left += 1
                if value["members"]:
                    named = ", ".join(value["members"][:_NAMED_MAX])
                    summary = f"group {value['group']} still has {named} when all have left"
                    self._stayed.add(summary, (line,), value["group"])
            case "ended":
                summary = f"process {operation.process} {value['detail']}"
                self._stayed.add(summary, (line,))

    def _observe_move(self, operation: Operation) -> None:
        value = operation.value
        calm_line = self._calm.get(value["group"])
        if calm_line is not None:
            self._moves.add(
                f"process {operation.process} noted {operation.f} of {len(value['keys'])}"
                f" partitions in group {value['group']}, of which only the coordinator had moved",
                (calm_line, operation.line),
                value["group"],
            )

    def _observe_commit(self, operation: Operation) -> None:
        asked = operation.asked
        group, key, offset = asked["group"], asked["key"], asked["offset"]
        ranges = self._processed.get((group, key), Intervals()).merged()
        end = ranges[0][1] + 1 if ranges and not ranges[0][0] else 0
        if offset > end:
            self._skipped.add(
                f"process {operation.process} committed {offset} for {key} in group {group}, when"
                f" only what is below {end} had been processed",
                (operation.line,),
                f"{group}/{key}",
            )

    def _observe_settled(self, value: dict[str, Any], line: int) -> None:
        """Compares what the coordinator says with what members noted."""
        group = value["group"]
        given: dict[str, list[str]] = {key: [] for key in value["keys"]}
        for member_id, keys in value["members"].items():
            for key in keys:
                given.setdefault(key, []).append(member_id)
        has: dict[str, list[tuple[int, int]]] = {}
        for process, owned in self._owned.get(group, {}).items():
            for key, since_line in owned.items():
                has.setdefault(key, []).append((process, since_line))
        for key, member_ids in given.items():
            owners = has.get(key, [])
            lines = (*(since_line for _, since_line in owners), line)
            problem = ""
            if key not in value["keys"]:
                problem = "isn't one of its topic's"
            elif len(member_ids) != 1 and not (self._shared and member_ids):
                problem = f"is {len(member_ids)} members', says the coordinator"
            elif len(owners) != len(member_ids):
                problem = f"is {len(owners)} members', say the members"
            else:
                for process, _ in owners:
                    if self._member_ids[group, process] not in ("", *member_ids):
                        problem = f"is process {process}'s, and the coordinator has other owners"
            if problem:
                self._unsettled.add(f"at rest, {key} in group {group} {problem}", lines, group)

    def verdicts(self) -> Iterator[Verdict]:
        yield self._moves.verdict(
            "needless-rebalance",
            "members keep what they have when only their coordinator moves",
            "no member was given or lost anything by that",
            {"calm times": self._calm_times},
        )
        yield self._known(
            self._settled > 0,
            self._unsettled.verdict(
                "settling",
                "a group comes to rest, each partition with one of its members",
                "groups came to rest, and their members and coordinators agreed",
                {"times at rest": self._settled},
            ),
        )
        yield self._known(bool(self._ends), self._all_processed())
        yield self._known(
            self._left > 0,
            self._stayed.verdict(
                "leaving",
                "members leave when they are told to, and not before",
                "all members left, and their groups are empty",
                {"groups left": self._left},
            ),
        )

    def _known(self, noted: bool, verdict: Verdict) -> Verdict:
        """Unknown if the run should have noted what the verdict is about, and didn't."""
        if noted or not self._expected or verdict.valid is False:
            return verdict
        explanation = "not enough is known: the run ended before that"
        return Verdict(verdict.checker, None, verdict.promise, explanation, verdict.counts)

    def _all_processed(self) -> Verdict:
        findings = self._skipped
        for group, key, end, line in self._ends:
            processed = self._processed.get((group, key), Intervals())
            missing = list(processed.missing(range(end)))
            if missing:
                findings.add(
                    f"{len(missing)} of {end} offsets of {key} were never processed in group"
                    f" {group}; the first is {missing[0]}",
                    (line,),
                    f"{group}/{key}",
                )
        return findings.verdict(
            "all-processed",
            "a group has processed all that it commits, and in the end all that its topic has",
            "nothing was left out",
            {"records": self._records},
        )

"""Commits of many partitions: each is seen whole or not at all.

Every commit of a group gives all of its partitions one offset, so a read that shows two of them saw
a part of a commit. Whether whole ones are lost or go back is `registers`' to say.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.testing.consistency.operations import Operation
from kraftpy.testing.consistency.verdicts import Findings, Verdict


class TornChecker:
    """The checker of the commits workload: no read shows a mixture."""

    def __init__(self) -> None:
        self._commits: dict[tuple[str, int], int] = {}
        self._mixtures: list[Operation] = []
        self._reads = 0

    def observe(self, operation: Operation) -> None:
        if operation.f == "commit-all":
            asked = operation.asked
            self._commits.setdefault((asked["group"], asked["offset"]), operation.line)
        elif operation.f == "fetch-all" and operation.outcome == "ok":
            self._reads += 1
            if len(operation.value["offsets"]) > 1:
                self._mixtures.append(operation)

    def verdicts(self) -> Iterator[Verdict]:
        findings = Findings()
        for read in self._mixtures:
            group, offsets = read.value["group"], sorted(read.value["offsets"])
            commits = [self._commits.get((group, offset), -1) for offset in offsets[:5]]
            findings.add(
                f"a read of {group} shows {', '.join(map(str, offsets[:5]))} at the same time",
                (*commits, read.line),
                group,
            )
        yield findings.verdict(
            "torn-commit",
            "a commit of many partitions is seen whole or not at all",
            "no read showed a part of a commit",
            {"reads": self._reads},
        )

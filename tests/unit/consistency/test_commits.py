"""Commits of many partitions: what is mixed, lost, goes back or was never made is found."""

from __future__ import annotations

from kraftpy.testing.consistency import WORKLOADS
from kraftpy.testing.consistency.operations import NEVER, Operation

NOTHING = -1
SECOND = 1_000_000_000
# Number, when it was sent, when it was acknowledged; the outcome of the third is unknown.
COMMITS = [(1, 1.0, 2.0), (2, 3.0, 4.0), (3, 5.0, None), (4, 7.0, 8.0)]


def operations(*reads: Operation) -> list[Operation]:
    made = []
    for line, (number, sent_s, acknowledged_s) in enumerate(COMMITS):
        value = {"group": "g", "offset": number}
        known = acknowledged_s is not None
        ended_ns = int(acknowledged_s * SECOND) if acknowledged_s is not None else NEVER
        made.append(
            Operation(
                line,
                1,
                "commit-all",
                "ok" if known else "info",
                int(sent_s * SECOND),
                ended_ns,
                value,
                value,
                "",
                "",
                "",
            )
        )
    numbered = [each._replace(line=100 + number) for number, each in enumerate(reads)]
    return sorted([*made, *numbered], key=lambda each: each.ended_ns)


def read(offset: int, began_s: float, *more: int, took_s: float = 0.5) -> Operation:
    asked = {"group": "g"}
    began_ns, ended_ns = int(began_s * SECOND), int((began_s + took_s) * SECOND)
    value = {**asked, "offsets": sorted([offset, *more])}
    return Operation(0, 2, "fetch-all", "ok", began_ns, ended_ns, asked, value, "", "", "")


def broken(*reads: Operation) -> set[str]:
    checkers = WORKLOADS["commits"]({})
    for operation in operations(*reads):
        for checker in checkers:
            checker.observe(operation)
    verdicts = [verdict for checker in checkers for verdict in checker.verdicts()]
    return {verdict.checker for verdict in verdicts if verdict.valid is not True}


def test_a_right_history() -> None:
    reads = [
        read(NOTHING, 0.0),
        read(1, 2.5),
        read(1, 3.1),
        read(2, 4.5),
        read(2, 6.0),
        read(4, 9.0),
    ]
    assert broken(*reads) == set()
    # A commit of unknown outcome may be there, and a read may show what is under way.
    assert broken(read(3, 5.5), read(3, 6.5), read(4, 7.1)) == set()
    # Nobody knows when a commit without an answer takes effect: its request may come late.
    assert broken(read(3, 9.0)) == set()
    # Reads that overlap may see different things in any order.
    assert broken(read(2, 3.1, took_s=1.0), read(1, 3.2, took_s=0.1)) == set()


def test_mixtures() -> None:
    assert broken(read(1, 3.1, 2)) == {"torn-commit"}
    assert broken(read(1, 2.5, NOTHING)) == {"torn-commit"}


def test_lost_acknowledged_commits() -> None:
    lost = {"linearizable", "stale-read", "offset-regression"}
    assert broken(read(1, 4.5)) == lost
    assert broken(read(NOTHING, 2.5)) == lost


def test_going_back() -> None:
    assert "linearizable" in broken(read(3, 5.2), read(2, 6.0))  # 3 was read, so it has to stay
    assert "linearizable" in broken(read(2, 6.0), read(3, 5.2))
    assert "linearizable" in broken(read(2, 3.1), read(1, 3.7))


def test_inventions() -> None:
    assert "linearizable" in broken(read(5, 9.0))
    assert "linearizable" in broken(read(4, 5.5))  # it is sent at 7

"""The checker of commits finds what it is for, and nothing in a history without it."""

from __future__ import annotations

from tests.groups.commit_checker import NOTHING, Commit, History, Read, check


def history(commits: list[Commit], *reads: Read) -> History:
    return History("g", commits, list(reads))


def read(offset: int, began_s: float, *more: int, took_s: float = 0.5) -> Read:
    return Read(frozenset([offset, *more]), began_s, began_s + took_s, 1)


COMMITS = [Commit(1, 1.0, 2.0), Commit(2, 3.0, 4.0), Commit(3, 5.0), Commit(4, 7.0, 8.0)]


def kinds(*reads: Read) -> list[str]:
    return [line.partition(":")[0] for line in check(history(COMMITS, *reads))]


def test_a_right_history() -> None:
    reads = [
        read(NOTHING, 0.0),
        read(1, 2.5),
        read(1, 3.1),
        read(2, 4.5),
        read(2, 6.0),
        read(4, 9.0),
    ]
    assert kinds(*reads) == []
    # A commit of unknown outcome may be there, and a read may show what is under way.
    assert kinds(read(3, 5.5), read(3, 6.5), read(4, 7.1)) == []
    # Reads that overlap may see different things in any order.
    assert kinds(read(2, 3.1, took_s=1.0), read(1, 3.2, took_s=0.1)) == []


def test_mixtures() -> None:
    assert kinds(read(1, 3.1, 2)) == ["mixture"]
    assert kinds(read(1, 2.5, NOTHING)) == ["mixture"]


def test_lost_acknowledged_commits() -> None:
    assert kinds(read(1, 4.5)) == ["lost"]
    assert kinds(read(NOTHING, 2.5)) == ["lost"]
    assert kinds(read(3, 9.0)) == ["lost"]


def test_going_back() -> None:
    assert kinds(read(3, 5.2), read(2, 6.0)) == ["back"]  # 3 was read, so it has to stay
    assert kinds(read(2, 6.0), read(3, 5.2)) == ["back"]
    assert kinds(read(2, 3.1), read(1, 3.7)) == ["back"]


def test_inventions() -> None:
    assert kinds(read(5, 9.0)) == ["invented"]
    assert kinds(read(4, 5.5)) == ["invented"]  # it is sent at 7

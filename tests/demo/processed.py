"""What members of a group have processed of one partition, and whether that was in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Processed(NamedTuple):
    """One record that a member worked on, from one time to another."""

    member: int
    offset: int
    key: bytes
    begin_ns: int
    end_ns: int


class Work:
    """All that was processed."""

    def __init__(self) -> None:
        self._all: list[Processed] = []
        self._offsets: set[int] = set()

    def add(self, processed: Processed) -> None:
        self._all.append(processed)
        self._offsets.add(processed.offset)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    @property
    def count(self) -> int:
        """How many records were processed."""
        return len(self._offsets)

    @property
    def repeats(self) -> int:
        """How often one was that had been before."""
        return len(self._all) - len(self._offsets)

    def count_of(self, member: int) -> int:
        return sum(each.member == member for each in self._all)

    def end_ns(self, offsets: Iterable[int]) -> int:
        """When the last one of these was processed for the first time."""
        first: dict[int, int] = {}
        for each in self._all:
            first[each.offset] = min(each.end_ns, first.get(each.offset, each.end_ns))
        return max(first[offset] for offset in offsets)

    def problems(self, keys: Sequence[bytes]) -> list[str]:
        """In words, what is wrong; `keys` are those of the offsets from 0 on."""
        found = []
        if missing := [offset for offset in range(len(keys)) if offset not in self._offsets]:
            found.append(f"{len(missing)} records are missing, such as that at {missing[0]}")
        newest: dict[bytes, Processed] = {}
        done: set[int] = set()
        for each in sorted(self._all, key=lambda each: each.begin_ns):
            if each.offset >= len(keys) or keys[each.offset] != each.key:
                found.append(f"nobody wrote {each.key!r} at {each.offset}")
                continue
            before = newest.get(each.key)
            if (
                before is not None
                and each.begin_ns < before.end_ns
                and before.member != each.member
            ):
                found.append(
                    f"{each.key!r}: two members at once, at {before.offset} and {each.offset}"
                )
            if before is not None and each.offset not in done and each.offset < before.offset:
                found.append(f"{each.key!r}: {each.offset} came behind {before.offset}")
            done.add(each.offset)
            if before is None or each.offset > before.offset:
                newest[each.key] = each
        return found

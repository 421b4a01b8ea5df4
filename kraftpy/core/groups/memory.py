"""What a coordinator keeps of groups because clients said so, counted and bounded.

Rules:

* All groups and members of a broker together stay within `group.coordinator.max.memory.bytes`. Who
  joins, or says more than before, is refused with COORDINATOR_NOT_AVAILABLE while there is no room
  (clients try again); who is in stays in.
* A group that nobody has joined yet, for which member ids were given out (KIP-394), costs its maker
  nothing. So all of these together have AWAITED_MAX_BYTES, and the oldest gives way: its client is
  told UNKNOWN_MEMBER_ID and asks for another id.
* Sizes are what the text and bytes take, and a guess for the objects around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

AWAITED_MAX_BYTES = 16 * 1024 * 1024

GROUP_BYTES = 1024
MEMBER_BYTES = 1024
PENDING_MEMBER_BYTES = 1024
ITEM_BYTES = 64


def text_bytes(*texts: str | None) -> int:
    """What these take in memory."""
    return sum(0 if text is None else len(text) * (1 if text.isascii() else 4) for text in texts)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """What the protocols of a classic member take."""
    return sum(ITEM_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


class GroupMemory:
    """What the groups of a broker take, and what they may take; shared by all its machines."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        # The groups that nobody has joined yet, the oldest first, each with how to forget it.
        self._awaited: dict[tuple[MachineMemory, str], tuple[int, Callable[[str], None]]] = {}
        self.awaited_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self._limit_bytes

    def wait_for(
        self, machine: MachineMemory, group_id: str, size_bytes: int, forget: Callable[[str], None]
    ) -> None:
        """Nobody has joined the group yet; `forget(group_id)` is called if it has to give way."""
        self.stop_waiting(machine, group_id)
        self._awaited[machine, group_id] = size_bytes, forget
        self.awaited_bytes += size_bytes
        while self.awaited_bytes > AWAITED_MAX_BYTES and len(self._awaited) > 1:
            key = next(iter(self._awaited))
            _, forget_oldest = self._awaited[key]
            self.stop_waiting(*key)
            forget_oldest(key[1])

    def stop_waiting(self, machine: MachineMemory, group_id: str) -> None:
        size_bytes, _ = self._awaited.pop((machine, group_id), (0, None))
        self.awaited_bytes -= size_bytes


class MachineMemory:
    """What the groups of one machine take."""

    def __init__(self, shared: GroupMemory) -> None:
        self._shared = shared
        self._sizes: dict[str, int] = {}

    def has_room(self, size_bytes: int) -> bool:
        """Whether the groups may take so much more. What takes no more always may."""
        return size_bytes <= 0 or self._shared.has_room(size_bytes)

    def holds(self, group_id: str, size_bytes: int) -> None:
        """The group takes so much now; 0: it is gone, or is waited for."""
        before = self._sizes.pop(group_id, 0)
        if size_bytes:
            self._sizes[group_id] = size_bytes
        self._shared.used_bytes += size_bytes - before

    def waits_for(self, group_id: str, size_bytes: int, forget: Callable[[str], None]) -> None:
        """Nobody has joined the group yet; see `GroupMemory.wait_for`."""
        self.holds(group_id, 0)
        self._shared.wait_for(self, group_id, size_bytes, forget)

    def stop_waiting(self, group_id: str) -> None:
        self._shared.stop_waiting(self, group_id)

    def close(self, awaited: Iterable[str]) -> None:
        """The machine is gone, with all that it held, and these groups."""
        for group_id in awaited:
            self.stop_waiting(group_id)
        for group_id in list(self._sizes):
            self.holds(group_id, 0)

"""The journal as pysyncobj sees its log, with entries that are not durable yet.

pysyncobj numbers from 1 an entry that nobody proposed; its index n is this quorum's n - 1, and the
entry before all others stands for the journal's base. Rules:

* New entries are staged and become durable together (`flush`): one record, one fdatasync. Whoever
  sends an acknowledgement or a vote flushes before; nothing above `durable_index` is counted as
  this voter's or applied.
* One write at a time may run in another thread (`start_sync`); everything else that writes waits
  for it (`settle`).
* Entries are removed only where the leader's entry has another term (pysyncobj removes whatever
  follows the entry before a message's, identical or not, committed or not).
* A committed entry is never removed: a leader that disagrees with it ends this process.
* Term and vote are durable when `setCurrentTerm` returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import overload

from kraftpy.quorum.journal import MAX_BATCH_SIZE_BYTES
from kraftpy.quorum.port import Entry
from kraftpy.quorum.raft import library
from kraftpy.quorum.replica import Replica

LibraryEntry = tuple[Entry, int, int]
"""What pysyncobj takes for (command, index, term)."""


class CommittedEntryLost(Exception):
    """The leader disagrees with an entry that is committed; Raft rules that out."""


class Sync:
    """A write to the journal: whoever calls `run` first does it, others wait until it's done."""

    def __init__(self, entries: list[Entry], write: Callable[[], None]) -> None:
        self.entries = entries
        self.started_at = library.now()
        self.error: Exception | None = None
        self._write: Callable[[], None] | None = write
        self._lock = threading.Lock()

    def run(self) -> None:
        """Writes; a failure goes to `error`."""
        with self._lock:
            write, self._write = self._write, None
            if write is not None:
                try:
                    write()
                except Exception as error:
                    self.error = error


class RaftLog:
    """The log on top of `replica.journal` (another journal after each compaction)."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._kept = replica.journal.last_index
        self._staged: list[Entry] = []
        self._sync: Sync | None = None
        replica.settle = self.settle

    @property
    def durable_index(self) -> int:
        return self._kept

    @property
    def base_index(self) -> int:
        return self._replica.journal.base_index

    @property
    def last_index(self) -> int:
        return self._kept + len(self._staged)

    @property
    def last_term(self) -> int:
        return self.term_at(self.last_index)

    @property
    def unsynced(self) -> bool:
        return bool(self._staged)

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, which lies within `base_index..last_index`."""
        if index > self._kept:
            return self._staged[index - self._kept - 1].term
        return self._replica.journal.term_at(index)

    def entry_at(self, index: int) -> Entry:
        if index > self._kept:
            return self._staged[index - self._kept - 1]
        return self._replica.journal.entry_at(index)

    def read(self, index: int, last: int, max_bytes: int) -> list[Entry]:
        """Entries from `index` to `last`, at most `max_bytes` of commands but at least one."""
        found: list[Entry] = []
        size_bytes = 0
        for at in range(index, last + 1):
            entry = self.entry_at(at)
            size_bytes += len(entry.command)
            if found and size_bytes > max_bytes:
                break
            found.append(entry)
        return found

    def first_of_term(self, index: int, floor: int) -> int:
        """The lowest index above `floor` from which to `index` all entries have the same term."""
        term = self.term_at(index)
        while index - 1 > floor and self.term_at(index - 1) == term:
            index -= 1
        return index

    def stage(self, entry: Entry) -> None:
        """Takes `entry`, which follows the last one."""
        assert entry.index == self.last_index + 1, (entry.index, self.last_index)
        self._staged.append(entry)

    def cut(self, index: int, committed_index: int) -> None:
        """Removes the entries from `index` on.

        On disk they stay until others take their place: an uncommitted entry does no harm there.
        """
        if index <= committed_index:
            raise CommittedEntryLost(
                f"the leader's log differs at index {index}, but {committed_index} is committed"
            )
        if self._sync is not None and index <= self._kept + len(self._sync.entries):
            self.settle()
        del self._staged[max(0, index - self._kept - 1) :]
        self._kept = min(self._kept, index - 1)

    def flush(self) -> None:
        """Makes what is staged durable. Raises as `Journal.append` does."""
        self.settle()
        while self.start_sync() is not None:
            self.settle()

    def start_sync(self) -> Sync | None:
        """What makes staged entries durable, as many as one write takes, once a thread runs it.

        None if there is nothing to do, or if such a write is under way.
        """
        if not self._staged or self._sync is not None:
            return None
        entries = self._next_batch()
        self._sync = Sync(entries, self._replica.journal.appending(entries))
        return self._sync

    @property
    def sync_age_s(self) -> float:
        """How long a write has been under way."""
        return 0.0 if self._sync is None else library.now() - self._sync.started_at

    def settle(self) -> None:
        """Waits for the write that is under way, if any. Raises as `Journal.append` does."""
        if self._sync is not None:
            sync, self._sync = self._sync, None
            sync.run()
            if sync.error is not None:
                raise sync.error
            self._replica.journal.appended(sync.entries)
            self._kept += len(sync.entries)
            del self._staged[: len(sync.entries)]

    def synced(self, sync: Sync) -> None:
        """`sync` has been run; whoever waited for it may have settled it, and begun another one."""
        if sync is self._sync:
            self.settle()

    def _next_batch(self) -> list[Entry]:
        count = size_bytes = 0
        for entry in self._staged:
            size_bytes += len(entry.command)
            if size_bytes > MAX_BATCH_SIZE_BYTES:
                break
            count += 1
        return self._staged[:count]

    def restarted(self) -> None:
        """The replica installed a snapshot."""
        assert not self._staged
        self._kept = self._replica.journal.last_index

    # -- what pysyncobj calls

    def __len__(self) -> int:
        return self.last_index - self.base_index + 1

    @overload
    def __getitem__(self, position: int) -> LibraryEntry: ...
    @overload
    def __getitem__(self, position: slice) -> list[LibraryEntry]: ...
    def __getitem__(self, position: int | slice) -> LibraryEntry | list[LibraryEntry]:
        if isinstance(position, slice):
            return [self._at(at) for at in range(*position.indices(len(self)))]
        return self._at(position if position >= 0 else len(self) + position)

    def _at(self, position: int) -> LibraryEntry:
        index = self.base_index + position
        if position == 0:
            term = self._replica.journal.base_term
            return Entry(index, term, b""), index + 1, term
        entry = self.entry_at(index)
        return entry, index + 1, entry.term

    def add(self, command: Entry | bytes, index: int, term: int) -> None:
        """An entry of the leader's, or (bytes) the one with which this voter opens its term."""
        self.stage(command if isinstance(command, Entry) else Entry(index - 1, term, b""))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802
        """Nothing: see `cut`."""

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._replica.journal.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return self._replica.journal.voted_for

    def setCurrentTerm(self, term: int, voted_for: int | None) -> None:  # noqa: N802
        self.settle()
        journal = self._replica.journal
        if (journal.term, journal.voted_for) != (term, voted_for):
            journal.set_vote(term, voted_for)

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Nothing: after a restart the leader tells."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing to do."""

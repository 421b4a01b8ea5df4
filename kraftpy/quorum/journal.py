"""The quorum's durable journal: one append-only file of checksummed records.

A record is `marker(4) | length(4) | CRC-32C(4) | kind(1) | payload`, big-endian, its payload
msgpack:

* START `[format version, file id, base index, base term]` opens the file: entries up to the base
  index have been dropped because a snapshot covers them;
* VOTE `[term, voted for]`: this voter's term and whom it gave its vote (the Raft back-end's too);
* ENTRIES `[[index, term, command], ...]`: what one `append` wrote (a group commit). If the first
  index is not above the last one, these entries take the place of the old ones from there on: a
  Raft leader disagreed with them.

Rules:

* One `append` is one record, one write and one fdatasync, and a record is only ever written once
  all records before it are durable. So an interrupted write can only damage the *last* record.
  A damaged record followed by an intact one means that the disk lost what it had confirmed:
  `JournalDamagedError`; this node must not vote or lead on such a journal.
* The checksum covers position and file id too, so bytes of an older file or a record quoted inside
  a command never pass as a record.
* The file is allocated ahead in steps of 1 MiB of zeros. A full disk then fails cleanly before a
  byte is written (`JournalFullError`), and fdatasync need not write a new file size each time.
* A failed write or fsync of any other kind is final (`JournalFailedError`): the kernel may have
  dropped the dirty pages and would report success next time. The process has to stop.
* How far the file is durable stands in a small file beside it (`quorum.confirmed`), written behind
  each fdatasync and never synced: it survives this process, and after a power failure it's old or
  gone, but never ahead. A journal that is sound for less than that lost what it had confirmed, its
  last records too, which would pass for an interrupted write otherwise.
* What is read on opening may only be in the page cache, written by a process that was killed
  before its fdatasync returned. It is synced before anybody counts on it.
* The new file of a compaction is complete and durable before it takes the old one's name.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from kraftpy.metrics.instruments import DISK_BUCKETS, Histogram
from kraftpy.protocol.crc import crc32c
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.packing import pack, unpack
from kraftpy.quorum.port import MAX_COMMAND_SIZE_BYTES, Entry

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_BATCH_SIZE_BYTES = 2 * MAX_COMMAND_SIZE_BYTES
"""Commands of one `append`, at most: one command of the largest size always fits."""
MAX_RECORD_SIZE_BYTES = MAX_BATCH_SIZE_BYTES + (16 << 20)
ALLOCATION_STEP_BYTES = 1 << 20
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_MARKER = b"\xf5kpJ"
_HEADER = struct.Struct(">4sIIB")
_CHECKED = struct.Struct(">QIB")
_CONFIRMED = struct.Struct(">QI")
_CONFIRMED_CRC = struct.Struct(">I")
CONFIRMED_SUFFIX = ".confirmed"
_START, _VOTE, _ENTRIES = 1, 2, 3


class JournalDamagedError(Exception):
    """The journal lost or changed data that it had confirmed. Names the file and what to do."""


class JournalFullError(Exception):
    """No space to append: nothing was written, the journal is as it was."""


class JournalFailedError(Exception):
    """A write or fsync failed; what is on disk is unknown. The process has to stop."""


class Journal:
    """An open journal. `create` or `open` make one; both need exclusive use of its folder."""

    def __init__(self, path: Path, fd: int, files: FileLayer) -> None:
        self.path = path
        self._fd = fd
        self._files = files
        self._seed = 0
        self._end = 0
        self._allocated = os.fstat(fd).st_size
        self.base_index = 0
        self.base_term = 0
        self.term = 0
        self.voted_for: int | None = None
        self.fsyncs = Histogram(DISK_BUCKETS)
        """What each fdatasync took; a journal that takes the place of another goes on with its."""
        self._entries: list[Entry] = []
        self._note: int | None = None
        self._unnoted = False

    @property
    def last_index(self) -> int:
        """Index of the last entry; everything up to it is durable."""
        return self._entries[-1].index if self._entries else self.base_index

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def size_bytes(self) -> int:
        """Bytes in use, without the space allocated ahead."""
        return self._end

    # -- opening

    @classmethod
    def create(cls, path: Path, files: FileLayer) -> Journal:
        """A new empty journal at `path`. Raises `JournalFullError` or `JournalFailedError`."""
        return _write_file(path, files, base=Entry(0, 0, b""), vote=None, entries=())

    @classmethod
    def open(cls, path: Path, files: FileLayer) -> Journal:
        """The journal at `path`, its interrupted last write (if any) removed.

        Raises `JournalDamagedError` on any other damage, `FileNotFoundError`, `JournalFailedError`.
        """
        data = path.read_bytes()
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        journal = cls(path, fd, files)
        try:
            journal._replay(data)
            journal._sync()
            journal._confirm()
        except BaseException:
            os.close(fd)
            raise
        return journal

    def close(self) -> None:
        os.close(self._fd)
        if self._note is not None:
            os.close(self._note)

    # -- writing

    def append(self, entries: Sequence[Entry]) -> None:
        """Makes `entries` durable, all or none.

        They continue `last_index`, or replace everything from the first one's index on. Raises
        `JournalFullError` (nothing changed) or `JournalFailedError` (stop the process).
        """
        self.appending(entries)()
        self.appended(entries)

    def appending(self, entries: Sequence[Entry]) -> Callable[[], None]:
        """The part of `append` that waits for the disk, to be called once, by any thread.

        Nothing else is written until it returned; then `appended` follows.
        """
        first = entries[0].index
        assert self.base_index < first <= self.last_index + 1, (first, self.last_index)
        term = self.term_at(first - 1)
        for index, entry in enumerate(entries, first):
            assert entry.index == index, (entry.index, index)
            assert entry.term >= term, (entry.term, term)
            assert len(entry.command) <= MAX_COMMAND_SIZE_BYTES
            term = entry.term
        return lambda: self._write_record(_ENTRIES, _packable(entries))

    def appended(self, entries: Sequence[Entry]) -> None:
        """`entries` are durable."""
        del self._entries[entries[0].index - self.base_index - 1 :]
        self._entries.extend(entries)

    def set_vote(self, term: int, voted_for: int | None) -> None:
        """Makes the term and the vote durable. Raises as `append` does."""
        assert term >= self.term
        self._write_record(_VOTE, [term, voted_for])
        self.term, self.voted_for = term, voted_for

    def compact(self, index: int) -> Journal:
        """Drops the entries up to `index`, which a snapshot covers; returns the new open journal.

        Raises `JournalFullError` (this journal stays in use) or `JournalFailedError`. The old
        object is closed on success.
        """
        return self.restart(index, self.term_at(index))

    def restart(self, index: int, term: int) -> Journal:
        """As `compact`, for a snapshot of the leader's that ends with the entry (`index`, `term`).

        What follows that entry here is kept; if it isn't here, nothing is.
        """
        assert index >= self.base_index
        known = index <= self.last_index and self.term_at(index) == term
        journal = _write_file(
            self.path,
            self._files,
            base=Entry(index, term, b""),
            vote=(self.term, self.voted_for),
            entries=self._entries[index - self.base_index :] if known else (),
        )
        journal.fsyncs = self.fsyncs
        self.close()
        return journal

    def _write_record(self, kind: int, value: object) -> None:
        data = _encode(self._end, kind, pack(value), self._seed)
        try:
            end = self._end + len(data)
            if end > self._allocated:
                step = -(-(end - self._allocated) // ALLOCATION_STEP_BYTES) * ALLOCATION_STEP_BYTES
                self._files.allocate(self._fd, self._allocated, step)
                self._allocated += step
            self._files.write(self._fd, data, self._end)
        except OSError as error:
            self._undo_write(error)
            raise JournalFullError(
                f"no space to write the quorum journal {self.path}: {error}"
            ) from None
        self._sync()
        self._end = end
        self._confirm()

    def _confirm(self) -> None:
        """Notes that everything up to the end is durable; what can't be noted isn't protected."""
        said = _CONFIRMED.pack(self._end, self._seed)
        try:
            if self._note is None:
                self._note = self._files.open_note(self.path.with_suffix(CONFIRMED_SUFFIX))
            self._files.write_note(self._note, said + _CONFIRMED_CRC.pack(crc32c(said)))
        except OSError as error:
            if not self._unnoted:
                logger.warning("can't note how far %s is durable: %s", self.path, error)
            self._unnoted = True

    def _confirmed_end(self) -> int | None:
        """How far this file was durable at least; None if that isn't known."""
        try:
            data = self.path.with_suffix(CONFIRMED_SUFFIX).read_bytes()
        except FileNotFoundError:
            return None
        if len(data) != _CONFIRMED.size + _CONFIRMED_CRC.size:
            return None
        (crc,) = _CONFIRMED_CRC.unpack_from(data, _CONFIRMED.size)
        end, seed = _CONFIRMED.unpack_from(data)
        # Another seed: it is of the file that this one has taken the place of.
        return end if crc == crc32c(data[: _CONFIRMED.size]) and seed == self._seed else None

    def _sync(self) -> None:
        started_s = perf_counter()
        try:
            self._files.datasync(self._fd)
        except OSError as error:
            raise JournalFailedError(f"fdatasync of {self.path} failed: {error}") from error
        self.fsyncs.observe(perf_counter() - started_s)

    def _undo_write(self, error: OSError) -> None:
        """After a full disk: forget the unwritten record. Any other error is final."""
        if error.errno not in NO_SPACE:
            raise JournalFailedError(f"writing {self.path} failed: {error}") from error
        try:
            self._files.truncate(self._fd, self._end)
        except OSError as second:
            raise JournalFailedError(f"truncating {self.path} failed: {second}") from second
        self._allocated = self._end

    # -- reading

    def term_at(self, index: int) -> int:
        """The term of the entry at `index`, which lies within `base_index..last_index`."""
        if index == self.base_index:
            return self.base_term
        return self._entries[index - self.base_index - 1].term

    def entry_at(self, index: int) -> Entry:
        """The entry at `index`, which lies within `base_index + 1..last_index`."""
        return self._entries[index - self.base_index - 1]

    def entries_from(self, index: int, max_bytes: int) -> list[Entry] | None:
        """Entries from `index` on, at least one if there is one; None if dropped by compaction."""
        if index <= self.base_index:
            return None
        found: list[Entry] = []
        size_bytes = 0
        for entry in islice(self._entries, index - self.base_index - 1, None):
            size_bytes += len(entry.command)
            if found and size_bytes > max_bytes:
                break
            found.append(entry)
        return found

    def _replay(self, data: bytes) -> None:
        position = 0
        while (record := _decode(data, position, self._seed)) is not None:
            kind, payload, after = record
            try:
                self._replay_record(kind, unpack(payload), position)
            except (ValueError, TypeError) as error:
                raise self._damaged(position, f"its record can't be read ({error})") from None
            position = after
        if position == 0:
            raise self._damaged(0, "its opening record is missing")
        self._end = position
        self._check_end(data)
        rest = data[position:]
        if rest.count(0) == len(rest):
            return
        logger.warning(
            "%s ended in an interrupted write at byte %d; removed it (it was never confirmed)",
            self.path,
            position,
        )
        try:
            self._files.truncate(self._fd, position)
        except OSError as error:
            raise JournalFailedError(f"truncating {self.path} failed: {error}") from error
        self._allocated = position

    def _check_end(self, data: bytes) -> None:
        """Raises `JournalDamagedError` if more than an interrupted write is lost behind the end."""
        found = data.find(_MARKER, self._end + 1)
        while found >= 0:
            if _decode(data, found, self._seed) is not None:
                raise self._damaged(
                    self._end,
                    f"an intact record follows at byte {found}, so this is no interrupted write",
                )
            found = data.find(_MARKER, found + 1)
        confirmed, note = self._confirmed_end(), self.path.with_suffix(CONFIRMED_SUFFIX).name
        if confirmed is not None and self._end < confirmed:
            raise self._damaged(
                self._end,
                f"it was durable up to byte {confirmed} before, so what it has lost was confirmed "
                f"({note} says so; in a copy that was made while the node ran, delete {note} to "
                "take it as it is)",
            )

    def _replay_record(self, kind: int, value: Any, position: int) -> None:
        if position == 0:
            version, file_id, self.base_index, self.base_term = value
            if kind != _START or version != FORMAT_VERSION:
                raise ValueError(f"format version {version}; this kraftpy reads {FORMAT_VERSION}")
            self._seed = crc32c(file_id)
        elif kind == _VOTE:
            self.term, self.voted_for = value
        elif kind == _ENTRIES:
            first = value[0][0]
            if self.base_index < first <= self.last_index:
                del self._entries[first - self.base_index - 1 :]
            for index, term, command in value:
                if index != self.last_index + 1 or term < self.last_term:
                    raise ValueError(f"entry {index} of term {term} follows {self.last_index}")
                self._entries.append(Entry(index, term, command))
        else:
            raise ValueError(f"record kind {kind} is unknown to this kraftpy")

    def _damaged(self, position: int, what: str) -> JournalDamagedError:
        return JournalDamagedError(
            f"quorum journal {self.path} is damaged at byte {position}: {what}. Nothing was "
            f"changed. Restore the folder {self.path.parent} from a backup; if the other voters "
            "are healthy, move the folder away and this node copies theirs; a single node without "
            "a backup loses its topics and settings when the folder is moved away"
        )


def _packable(entries: Sequence[Entry]) -> list[tuple[int, int, bytes]]:
    return [(entry.index, entry.term, entry.command) for entry in entries]


def _encode(position: int, kind: int, payload: bytes, seed: int) -> bytes:
    assert len(payload) <= MAX_RECORD_SIZE_BYTES
    checked = _CHECKED.pack(position, len(payload), kind)
    crc = crc32c(payload, crc32c(checked, seed))
    return _HEADER.pack(_MARKER, len(payload), crc, kind) + payload


def _decode(data: bytes, position: int, seed: int) -> tuple[int, bytes, int] | None:
    """(kind, payload, position after it) of the intact record at `position`, else None."""
    start = position + _HEADER.size
    if start > len(data):
        return None
    marker, length, crc, kind = _HEADER.unpack_from(data, position)
    if marker != _MARKER or length > MAX_RECORD_SIZE_BYTES or start + length > len(data):
        return None
    payload = data[start : start + length]
    if crc32c(payload, crc32c(_CHECKED.pack(position, length, kind), seed)) != crc:
        return None
    return kind, payload, start + length


def _write_file(
    path: Path,
    files: FileLayer,
    *,
    base: Entry,
    vote: tuple[int, int | None] | None,
    entries: Sequence[Entry],
) -> Journal:
    """Writes a whole journal beside `path`, makes it durable, and gives it the name `path`."""
    temporary = path.with_name(path.name + ".tmp")
    file_id = os.urandom(8)
    journal: Journal | None = None
    try:
        fd = files.create(temporary)
        journal = Journal(path, fd, files)
        start = pack([FORMAT_VERSION, file_id, base.index, base.term])
        data = _encode(0, _START, start, 0)
        journal._seed = crc32c(file_id)
        if vote is not None:
            data += _encode(len(data), _VOTE, pack(vote), journal._seed)
            journal.term, journal.voted_for = vote
        for batch in _batches(entries):
            data += _encode(len(data), _ENTRIES, pack(_packable(batch)), journal._seed)
        files.write(fd, data, 0)
        files.datasync(fd)
    except OSError as error:
        if journal is not None:
            journal.close()
        if error.errno in NO_SPACE:
            files.unlink(temporary)
            raise JournalFullError(f"no space to write {temporary}: {error}") from None
        raise JournalFailedError(f"writing {temporary} failed: {error}") from error
    try:
        files.replace(temporary, path)
    except OSError as error:  # whichever file has the name now, the open one may not be it
        journal.close()
        raise JournalFailedError(f"renaming {temporary} failed: {error}") from error
    journal.base_index, journal.base_term = base.index, base.term
    journal._entries = list(entries)
    journal._end = journal._allocated = len(data)
    journal._confirm()
    return journal


def _batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    batches: list[list[Entry]] = []
    size_bytes = 0
    for entry in entries:
        size_bytes += len(entry.command)
        if not batches or size_bytes > MAX_BATCH_SIZE_BYTES or len(batches[-1]) >= 10_000:
            batches.append([])
            size_bytes = len(entry.command)
        batches[-1].append(entry)
    return batches

"""What a cluster leaves behind and what it says meanwhile, as entries of a history.

Rules:

* `inspect` reads the files of nodes that have stopped, with the readers of the broker: logs,
  leader-epoch-checkpoints, and who led when as the state machine makes it of the committed commands
  in the voters' journals. The records of the first replica of each partition are noted like those
  that a client reads, from the log's start to its end.
* What two voters' journals share is committed; what only one has may not be.
* `Observers` ask each broker again and again who leads: that is what clients are told.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from kraftpy.core.metadata import MetadataState, PartitionChanged, TopicCreated
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import iter_records, read_batch_header, split_batches
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import Journal
from kraftpy.quorum.port import Entry
from kraftpy.quorum.snapshot import JOURNAL_NAME, SnapshotStore
from kraftpy.quorum.state import ReplicatedState
from kraftpy.server.node.processes import METADATA_FOLDER
from kraftpy.storage.checkpoints import LEADER_EPOCH_FILE, read_epochs
from kraftpy.testing.consistency import secured
from kraftpy.testing.consistency.checkers.replicas import METADATA
from kraftpy.testing.consistency.clients import Place, key_of
from kraftpy.testing.consistency.history import HistoryWriter
from kraftpy.testing.node import Node
from kraftpy.testing.view import ask_metadata

_NO_LEADER = -1
_BATCHES_A_LINE = 2_000
_RECORDS_A_LINE = 1_000
_LOOK_EVERY_S = 0.1
_LOOK_TIMEOUT_S = 0.5


def inspect(
    folders: Mapping[int, Path],
    replicas: Mapping[Place, Sequence[int]],
    history: HistoryWriter,
    process: int,
) -> None:
    """Notes what stopped nodes have on disk.

    `folders` are their log.dirs, `replicas` says which nodes have a partition. Raises
    OSError, and what the readers of journals raise where those are damaged.
    """
    for place, leaders in _leaders(folders, history, process).items():
        if place in replicas:
            for source, epoch, leader in leaders:
                value = {"key": key_of(place), "epoch": epoch, "leader": leader, "source": source}
                history.note(process, "led", value)
    for place, nodes in replicas.items():
        key = key_of(place)
        for number, node in enumerate(sorted(nodes)):
            folder = folders[node] / key
            value = {"node": node, "key": key}
            content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
            _note_log(history, process, value, content)
            epochs = [list(each) for each in read_epochs(folder / LEADER_EPOCH_FILE)]
            history.note(process, "epochs", {**value, "epochs": epochs})
            if not number:
                _note_records(history, process, key, content)


def _note_log(history: HistoryWriter, process: int, value: dict[str, Any], content: bytes) -> None:
    op = history.invoke(process, "stored", value)
    try:
        batches = [
            [
                header.base_offset,
                header.base_offset + header.last_offset_delta,
                header.partition_leader_epoch,
                header.size_bytes,
                header.crc,
            ]
            for _, header in split_batches(content)
        ]
    except DecodeError as error:
        history.fail(process, op, "stored", str(error))
        return
    parts = _parts(batches, _BATCHES_A_LINE)
    history.ok(process, op, "stored", {**value, "batches": next(parts, [])})
    for part in parts:
        history.note(process, "stored", {**value, "batches": part})


def _note_records(history: HistoryWriter, process: int, key: str, content: bytes) -> None:
    """As a reader's who goes from the start of the log to its end."""
    try:
        records: list[list[Any]] = [
            [record.offset, (record.value or b"").decode()]
            for position, _ in split_batches(content)
            for record in iter_records(content, position)
        ]
    except DecodeError:
        return  # `stored` says so
    start = read_batch_header(content).base_offset if content else 0
    history.note(process, "assign", {key: start})
    op = history.invoke(process, "drain")
    for part in _parts(records, _RECORDS_A_LINE):
        history.note(process, "poll", {key: part})
    end = records[-1][0] + 1 if records else start
    history.ok(process, op, "drain", {key: [start, end]})


def _parts(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


# -- the metadata


def _leaders(
    folders: Mapping[int, Path], history: HistoryWriter, process: int
) -> dict[Place, list[tuple[str, int, int]]]:
    """(source, epoch, leader) of each partition, by the committed metadata."""
    led: dict[Place, list[tuple[str, int, int]]] = {}

    def note(index: int, partitions: Iterable[tuple[str, int, Any]]) -> None:
        for topic, number, state in partitions:
            if state.leader != _NO_LEADER:
                entry = (f"{METADATA} at {index}", state.leader_epoch, state.leader)
                led.setdefault((topic, number), []).append(entry)

    class Historian(MetadataState):
        def apply(self, index: int, command: object) -> Any:
            result = super().apply(index, command)
            note(index, _changed(result.changes))
            return result

    with tempfile.TemporaryDirectory() as copies:
        journals = {}
        for node, folder in folders.items():
            source = folder / METADATA_FOLDER
            if (source / JOURNAL_NAME).exists():  # a broker that came later doesn't vote
                copy = Path(shutil.copytree(source, Path(copies) / str(node)))
                journals[node] = Journal.open(copy / JOURNAL_NAME, FileLayer())
        try:
            committed = _committed(journals, history, process)
            longest = min(journals.values(), key=lambda journal: journal.base_index)
            state = _state_at_start(longest, Historian)
        finally:
            for journal in journals.values():
                journal.close()
    machine = state.machine
    assert isinstance(machine, Historian)
    note(state.applied_index, _all(machine))
    for index in range(state.applied_index + 1, max(committed, default=0) + 1):
        state.apply(committed[index])
    return led


def _committed(
    journals: Mapping[int, Journal], history: HistoryWriter, process: int
) -> dict[int, Entry]:
    """The entries that two voters share, by index."""
    entries = {
        node: {
            entry.index: entry
            for entry in journal.entries_from(journal.base_index + 1, 1 << 40) or ()
        }
        for node, journal in journals.items()
    }
    committed: dict[int, Entry] = {}
    if len(entries) == 1:
        return next(iter(entries.values()))
    for one, other in combinations(sorted(entries), 2):
        mine, theirs = entries[one], entries[other]
        shared = [
            index for index in mine.keys() & theirs.keys() if mine[index].term == theirs[index].term
        ]
        op = history.invoke(process, "journals", {"nodes": [one, other]})
        different = [index for index in shared if mine[index] != theirs[index]]
        if different:
            text = f"the journals of {one} and {other} contradict at index {min(different)}"
            history.fail(process, op, "journals", text)
        else:
            history.ok(process, op, "journals")
        newest = max(shared, default=0)
        # All before it is the same (Raft's log matching), and may be compacted in the other one.
        committed |= {i: entry for i, entry in (mine | theirs).items() if i <= newest}
    return committed


def _state_at_start(journal: Journal, machine_type: type[MetadataState]) -> ReplicatedState:
    """The state before a journal's first entry that is needed: of its oldest snapshot, if any."""
    store = SnapshotStore(journal.path.parent, FileLayer())
    for name in store.list():
        if journal.base_index and name.index >= journal.base_index:
            found = store.load(name.path)
            return ReplicatedState.restore(machine_type, found.index, found.sessions, found.machine)
    return ReplicatedState(machine_type)


def _changed(changes: Sequence[object]) -> Iterator[tuple[str, int, Any]]:
    for change in changes:
        if isinstance(change, TopicCreated):
            for number, state in change.topic.partitions.items():
                yield change.topic.name, number, state
        elif isinstance(change, PartitionChanged):
            yield change.topic.name, change.index, change.new


def _all(state: MetadataState) -> Iterator[tuple[str, int, Any]]:
    for topic in state.topics.values():
        for number, partition in topic.partitions.items():
            yield topic.name, number, partition


# -- what brokers tell


class Observers:
    """A thread for each node, from `with` on until that ends."""

    def __init__(
        self, nodes: Iterable[Node], topics: Iterable[str], history: HistoryWriter, process: int
    ) -> None:
        self._topics = set(topics)
        self._history = history
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[node, process + number], daemon=True)
            for number, node in enumerate(nodes)
        ]

    def __enter__(self) -> Observers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, node: Node, process: int) -> None:
        seen: set[tuple[Place, int, int]] = set()
        while not self._stop.wait(_LOOK_EVERY_S):
            try:
                view = ask_metadata(*node.own, _LOOK_TIMEOUT_S, secured.own())
            except (OSError, DecodeError):
                continue
            for place, state in view.partitions.items():
                told = (place, state.leader_epoch, state.leader)
                if place[0] in self._topics and state.leader >= 0 and told not in seen:
                    seen.add(told)
                    value = {"key": key_of(place), "epoch": state.leader_epoch}
                    value |= {"leader": state.leader, "source": f"broker {node.id}"}
                    self._history.note(process, "led", value)

"""What a cluster leaves behind, read when it has stopped: logs, epochs, the metadata's history.

The files are read with the readers of kraftpy.storage and kraftpy.quorum; the metadata's history is
what its state machine makes of the committed commands in the voters' journals.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from kraftpy.core.metadata import MetadataState, PartitionChanged, TopicCreated
from kraftpy.protocol.errors import DecodeError
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import Journal
from kraftpy.quorum.port import Entry
from kraftpy.quorum.snapshot import JOURNAL_NAME
from kraftpy.quorum.state import ReplicatedState
from kraftpy.server.node.processes import METADATA_FOLDER
from kraftpy.storage.checkpoints import LEADER_EPOCH_FILE, read_epochs
from tests.consistency.checker import Anomaly
from tests.torture.checker import Led, check_epochs, check_replicas, read_log, walk

NO_LEADER = -1
Log = list[tuple[int, bytes]]


class Evidence:
    """The files of one stopped cluster; `folders` are the nodes' log.dirs by id."""

    def __init__(self, folders: dict[int, Path]) -> None:
        self._folders = folders
        self.anomalies: list[str] = []
        self._led = self._history()

    def log_of(self, topic: str, partition: int, end: int, seen: Sequence[Led]) -> Log:
        """One partition's records, after a look at all of its replicas."""
        name = f"{topic}-{partition}"
        contents = {node: _content(folder / name) for node, folder in self._folders.items()}
        logs: dict[int, Log] = {}
        for node, content in contents.items():
            try:
                logs[node] = read_log(content)
            except DecodeError as error:
                self.anomalies.append(f"{name}: node {node} has a damaged log: {error}")
                return []
        self._add(name, check_replicas(contents, end))
        for node, log in logs.items():
            if not log or log[-1][0] != end - 1:
                last = log[-1][0] if log else None
                self.anomalies.append(f"{name}: node {node} ends with {last}, not {end - 1}")
        checkpoints = {
            node: read_epochs(folder / name / LEADER_EPOCH_FILE)
            for node, folder in self._folders.items()
        }
        reference = contents[min(contents)]
        batches = [(h.partition_leader_epoch, h.base_offset) for _, h in walk(reference)]
        led = [*self._led.get((topic, partition), ()), *seen]
        self._add(name, check_epochs(led, checkpoints, batches))
        return [record for record in logs[min(logs)] if record[0] < end]

    def _add(self, name: str, found: list[Anomaly]) -> None:
        self.anomalies += [f"{name}: {anomaly}" for anomaly in found]

    def _history(self) -> dict[tuple[str, int], list[Led]]:
        """Who led which partition in which epoch, by the metadata log."""
        entries = self._committed()
        led: dict[tuple[str, int], list[Led]] = {}

        class Historian(MetadataState):
            def apply(self, index: int, command: dict[str, Any]) -> Any:
                result = super().apply(index, command)
                for topic, number, state in _partitions(result.changes):
                    if state.leader != NO_LEADER:
                        source = f"metadata at {index}"
                        known = led.setdefault((topic, number), [])
                        known.append(Led(source, state.leader_epoch, state.leader))
                return result

        state = ReplicatedState(Historian)
        for entry in entries:
            state.apply(entry)
        return led

    def _committed(self) -> list[Entry]:
        """The entries that two of three journals share; what only one has was not committed."""
        journals = {}
        for node, folder in self._folders.items():
            with tempfile.TemporaryDirectory() as copy:
                path = Path(shutil.copy(folder / METADATA_FOLDER / JOURNAL_NAME, copy))
                journal = Journal.open(path, FileLayer())
                entries = journal.entries_from(1, 1 << 40)
                journal.close()
            if entries is None:
                raise ValueError(f"node {node} has compacted its journal: play shorter rounds")
            journals[node] = entries
        committed: list[Entry] = []
        for (node, one), (other, two) in combinations(sorted(journals.items()), 2):
            shared = [a for a, b in zip(one, two, strict=False) if a.term == b.term]
            if any(a != b for a, b in zip(shared, two, strict=False)):
                self.anomalies.append(f"metadata: the journals of {node} and {other} contradict")
            committed = max(committed, shared, key=len)
        return committed


def _partitions(changes: Sequence[object]) -> Iterator[tuple[str, int, Any]]:
    for change in changes:
        if isinstance(change, TopicCreated):
            for number, state in change.topic.partitions.items():
                yield change.topic.name, number, state
        elif isinstance(change, PartitionChanged):
            yield change.topic.name, change.index, change.new


def _content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

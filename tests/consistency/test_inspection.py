"""What is noted of a stopped cluster's files is right, and damage planted in them is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.core.metadata import MetadataState
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import Journal
from kraftpy.quorum.port import Entry
from kraftpy.quorum.snapshot import JOURNAL_NAME, Snapshot, SnapshotStore
from kraftpy.quorum.state import ReplicatedState
from kraftpy.server.node.processes import METADATA_FOLDER
from kraftpy.testing import Cluster
from kraftpy.testing.consistency import Header, HistoryReader, HistoryWriter, Outcome, check
from kraftpy.testing.consistency.inspection import inspect
from kraftpy.testing.consistency.operations import Operation, pair

TOPIC = "t"
VALUES = [b"value-%d" % i for i in range(40)]
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a cluster that was written to before and after its first leader died."""
    folder = tmp_path_factory.mktemp("evidence")
    with Cluster(3, dir=folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, replication_factor=3)])[TOPIC].result(TIMEOUT_S)
        settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
        producer = Producer(settings | {"enable.idempotence": True})
        for value in VALUES[:20]:
            producer.produce(TOPIC, value)
        assert producer.flush(TIMEOUT_S) == 0
        victim = cluster.leader_of(TOPIC)
        assert victim is not None
        cluster.kill(victim)
        for value in VALUES[20:]:
            producer.produce(TOPIC, value)
        assert producer.flush(TIMEOUT_S) == 0
        cluster.restart(victim)
        cluster.wait_healthy()
    return folder


@pytest.fixture
def folders(remains: Path, tmp_path: Path) -> dict[int, Path]:
    """A copy, to damage; log.dirs by node."""
    copy = shutil.copytree(remains, tmp_path / "copy")
    return {node: copy / f"node{node}" / "data" for node in (1, 2, 3)}


def record(folders: dict[int, Path], path: Path) -> HistoryReader:
    """A history of what was sent and acknowledged, and of what the files hold."""
    header = Header("replicas", options={"idempotence": True, "inspected": True})
    with HistoryWriter(path, header) as history:
        for offset, value in enumerate(VALUES):
            sent = [f"{TOPIC}-0", value.decode()]
            op = history.invoke(1, "send", [sent])
            history.ok(1, op, "send", [[*sent, offset]])
        inspect(folders, {(TOPIC, 0): [1, 2, 3]}, history, 7)
    return HistoryReader(path)


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[dict[int, Path]], dict[str, str]]:
    """Promises that the files of a cluster break: checker -> explanation."""

    def judge(folders: dict[int, Path]) -> dict[str, str]:
        outcome: Outcome = check(record(folders, tmp_path / "history.jsonl"))
        return {each.checker: each.explanation for each in outcome.verdicts if not each.valid}

    return judge


def test_what_was_written_is_noted(folders: dict[int, Path], tmp_path: Path) -> None:
    history = record(folders, tmp_path / "history.jsonl")
    assert check(history).valid is True
    noted = [each for each in pair(history) if isinstance(each, Operation)]
    (records,) = [each.value[f"{TOPIC}-0"] for each in noted if each.f == "poll"]
    assert records == [[offset, value.decode()] for offset, value in enumerate(VALUES)]
    stored = {each.value["node"]: each.value["batches"] for each in noted if each.f == "stored"}
    assert stored[1] == stored[2] == stored[3]
    assert stored[1][-1][1] == len(VALUES) - 1
    led = [(each.value["epoch"], each.value["leader"]) for each in noted if each.f == "led"]
    assert len(dict(led)) >= 2  # one before the kill and one after
    assert sum(each.f == "journals" for each in noted) == 3


def flip_a_byte(data: Path) -> None:
    log = data / f"{TOPIC}-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)


def change_an_epoch(data: Path) -> None:
    """In the header of the first batch, where no checksum sees it."""
    log = data / f"{TOPIC}-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[15] += 1
    log.write_bytes(content)


def cut(data: Path) -> None:
    log = data / f"{TOPIC}-0" / f"{0:020d}.log"
    log.write_bytes(b"")


def note_another_start(data: Path) -> None:
    path = data / f"{TOPIC}-0" / "leader-epoch-checkpoint"
    path.write_text(path.read_text().replace(" 20\n", " 19\n"))


def rewrite_the_metadata(data: Path) -> None:
    path = data / METADATA_FOLDER / JOURNAL_NAME
    journal = Journal.open(path, FileLayer())
    entries = journal.entries_from(1, 1 << 30)
    journal.close()
    assert entries is not None
    path.unlink()
    journal = Journal.create(path, FileLayer())
    # The first command but that which raises the level, without which the rest isn't known: what
    # came last may not have reached the other voters before they stopped.
    _, changed, *_ = (entry for entry in entries if entry.command)
    entries[changed.index - 1] = Entry(changed.index, changed.term, changed.command + b"?")
    journal.append(entries)
    journal.close()


@pytest.mark.parametrize(
    ("damage", "checker"),
    [
        (flip_a_byte, "replica-damage"),
        (change_an_epoch, "replica-divergence"),
        (cut, "replica-divergence"),
        (note_another_start, "epochs"),
        (rewrite_the_metadata, "metadata-divergence"),
    ],
)
@pytest.mark.parametrize("node", [1, 3])
def test_damage_is_found(
    damage: Callable[[Path], None],
    checker: str,
    node: int,
    folders: dict[int, Path],
    broken: Callable[[dict[int, Path]], dict[str, str]],
) -> None:
    damage(folders[node])
    assert checker in broken(folders)


def leader_epoch(state: ReplicatedState) -> int:
    assert isinstance(state.machine, MetadataState)
    topic = state.machine.topics.get(TOPIC)
    return -1 if topic is None else topic.partitions[0].leader_epoch


def test_leaders_are_those_of_a_snapshot_and_the_journal_behind_it(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    """Of what lies before the snapshot nobody knows who led, and nobody is accused."""
    for folder in folders.values():
        path = folder / METADATA_FOLDER / JOURNAL_NAME
        journal = Journal.open(path, FileLayer())
        state = ReplicatedState(MetadataState)
        for entry in journal.entries_from(1, 1 << 30) or ():
            state.apply(entry)
            if leader_epoch(state) == 1:
                break
        index = state.applied_index
        term = journal.term_at(index)
        snapshot = Snapshot(index, term, state.pack_sessions(), state.pack_machine())
        SnapshotStore(path.parent, FileLayer()).write(snapshot)
        journal.compact(index).close()
    history = record(folders, tmp_path / "history.jsonl")
    assert check(history).valid is True
    noted = [each for each in pair(history) if isinstance(each, Operation) and each.f == "led"]
    assert {each.value["epoch"] for each in noted} >= {1}
    assert 0 not in {each.value["epoch"] for each in noted}


def test_a_run_that_reads_no_disk_is_unknown(tmp_path: Path) -> None:
    header = Header("replicas", options={"inspected": True})
    with HistoryWriter(tmp_path / "history.jsonl", header) as history:
        op = history.invoke(1, "send", [["t-0", "a"]])
        history.ok(1, op, "send", [["t-0", "a", 0]])
    verdicts = check(HistoryReader(tmp_path / "history.jsonl")).verdicts
    assert {each.checker: each.valid for each in verdicts}["replica-divergence"] is None

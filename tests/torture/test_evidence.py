"""What is read from a stopped cluster's files is right, and damage planted in them is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import Journal
from kraftpy.quorum.port import Entry
from kraftpy.quorum.snapshot import JOURNAL_NAME
from kraftpy.server.node.processes import METADATA_FOLDER
from kraftpy.testing import Cluster
from tests.torture.checker import Led
from tests.torture.evidence import Evidence

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


def judge(folders: dict[int, Path], seen: list[Led] | None = None) -> list[str]:
    evidence = Evidence(folders)
    evidence.log_of(TOPIC, 0, len(VALUES), seen or [])
    return evidence.anomalies


def test_what_was_written_is_read(folders: dict[int, Path]) -> None:
    evidence = Evidence(folders)
    log = evidence.log_of(TOPIC, 0, len(VALUES), [])
    assert log == list(enumerate(VALUES))
    assert evidence.anomalies == []


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
    # The first command: what came last may not have reached the other voters before they stopped.
    changed = next(entry for entry in entries if entry.command)
    entries[changed.index - 1] = Entry(changed.index, changed.term, changed.command + b"?")
    journal.append(entries)
    journal.close()


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (flip_a_byte, "damaged log"),
        (change_an_epoch, "diverged"),
        (cut, "diverged"),
        (note_another_start, "epochs"),
        (rewrite_the_metadata, "contradict"),
    ],
)
@pytest.mark.parametrize("node", [1, 3])
def test_damage_is_found(
    damage: Callable[[Path], None], word: str, node: int, folders: dict[int, Path]
) -> None:
    damage(folders[node])
    assert any(word in anomaly for anomaly in judge(folders)), judge(folders)


def test_a_second_leader_is_found(folders: dict[int, Path]) -> None:
    evidence = Evidence(folders)
    (first, *_) = evidence._led[TOPIC, 0]
    other = first.leader % 3 + 1
    said = judge(folders, [Led("broker 2", first.epoch, other)])
    assert any("two leaders" in anomaly for anomaly in said)

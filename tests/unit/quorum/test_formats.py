"""What earlier releases have written is read as they read it.

`fixtures` has folders of a voter as it was stopped, each a NAME.tar.xz, with what the release that
wrote it made of it in NAME.json:

* `level-0-journal`: a journal from its first entry on, with every command that there was before
  metadata had levels. A cluster of four brokers and three voters, under stock clients and kraftpy's
  own command line: brokers were killed, stopped and decommissioned, replicas moved, a disk took no
  writes for a while.
* `level-0-snapshots`: the same again, two snapshots and what the journal has behind the older one.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tarfile
from enum import Enum
from pathlib import Path
from typing import Any, cast

import pytest

from kraftpy.core.metadata import MetadataState
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.journal import Journal
from kraftpy.quorum.snapshot import JOURNAL_NAME, recover
from kraftpy.quorum.state import ReplicatedState, type_of

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ["level-0-journal", "level-0-snapshots"]
COMMANDS = {
    "barrier",
    "register_broker",
    "unregister_broker",
    "fence_broker",
    "unfence_broker",
    "begin_shutdown",
    "allocate_producer_ids",
    "create_topics",
    "delete_topics",
    "create_partitions",
    "alter_partition",
    "renew_replicas",
    "elect_leaders",
    "alter_reassignments",
    "alter_configs",
}


def neutral(value: Any) -> Any:
    """Records, maps and bytes as JSON has them, without anything that reads or writes them."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: neutral(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, (list, tuple)):
        return [neutral(each) for each in value]
    if isinstance(value, dict):
        return {str(key): neutral(each) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        named = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {
            name: neutral(each)
            for name, each in named.items()
            if name not in NEWER or each != NEWER[name]
        }
    return value


NEWER = {"twin_of": None, "registered_ms": 0, "metrics": None}
"""Fields that came after the fixtures, and what stands in them where nobody has put anything."""


def state_of(folder: Path) -> dict[str, Any]:
    """What a voter knows that starts in the folder."""
    recovered = recover(folder, MetadataState, FileLayer(), replay=True)
    recovered.journal.close()
    state = cast("MetadataState", recovered.state.machine)
    configs = [[int(type_), name, each] for (type_, name), each in sorted(state.configs.items())]
    return {
        "applied_index": state.applied_index,
        "cluster_id": state.cluster_id,
        "next_producer_id": state.next_producer_id,
        "brokers": neutral(list(state.brokers.values())),
        "topics": neutral(list(state.sorted_topics())),
        "configs": configs,
        "stale": sorted(recovered.stale),
        "snapshot_index": recovered.snapshot_index,
    }


def answers(folder: Path) -> list[Any]:
    """What was answered to each entry of the journal."""
    journal = Journal.open(folder / JOURNAL_NAME, FileLayer())
    entries = journal.entries_from(1, sys.maxsize) or []
    journal.close()
    state = ReplicatedState(MetadataState)
    return [neutral(list(state.apply(entry).result)) for entry in entries]


def extracted(name: str, folder: Path) -> Path:
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def written(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_what_the_release_made_of_it(name: str, tmp_path: Path) -> None:
    assert state_of(extracted(name, tmp_path)) == written(name)["state"]


def test_every_command_is_answered_as_the_release_did(tmp_path: Path) -> None:
    folder = extracted("level-0-journal", tmp_path)
    assert answers(folder) == written("level-0-journal")["answers"]


def test_the_journal_has_every_command(tmp_path: Path) -> None:
    journal = Journal.open(extracted("level-0-journal", tmp_path) / JOURNAL_NAME, FileLayer())
    entries = journal.entries_from(1, sys.maxsize) or []
    journal.close()
    assert {type_of(each.command) for each in entries if each.command} == COMMANDS

"""What a mirror copies, what it notes of topics, and which offsets stand for which."""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from pathlib import Path

import pytest

from kraftpy.pipeline.manifests import TopicIdentity
from kraftpy.pipeline.mirrored import CheckpointError, Names, Note, Notes
from kraftpy.pipeline.offset_syncs import Sync, SyncStore, advanced, begun, extended, translated
from kraftpy.spark.positions import OptionError, Pattern

NEAR, FAR = TopicIdentity("near", "1" * 32), TopicIdentity("far", "2" * 32)


def test_342_names_and_patterns() -> None:
    names = Names(("flights",), Pattern.read("orders-.*"), "near.")
    there = ["orders-1", "near.orders-2", "far.near.orders-3", "orders-4", "cities"]
    assert names.choose(there) == ["flights", "orders-1", "orders-4"]
    assert names.copy_of("orders-1") == "near.orders-1"
    every = Names(pattern=Pattern.read(".*"), prefix="near.")
    assert every.choose(there) == ["cities", "orders-1", "orders-4"]
    # Who names a topic wants it, whatever it is called.
    assert Names(("near.x",), None, "near.").choose(()) == ["near.x"]
    assert Names(("a",), to_topic="b").copy_of("a") == "b"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (Names(), "say what to copy"),
        (Names(("a", "b"), to_topic="c"), "--prefix"),
        (Names(("a",), Pattern.read("b"), to_topic="c"), "--prefix"),
        (Names(("a",), None, "x.", "c"), "--prefix"),
    ],
)
def test_names_that_make_no_sense(names: Names, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        names.check()


def test_notes_are_of_two_topics(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    assert notes.check("a", NEAR, "a", None) is None
    note = Note(NEAR, "a", FAR, {"retention.ms": "1"})
    notes.write("a", note)
    assert notes.check("a", NEAR, "a", FAR) == note
    for source, to_topic, target in ((FAR, "a", FAR), (NEAR, "b", FAR), (NEAR, "a", None)):
        with pytest.raises((CheckpointError, OptionError)):
            notes.check("a", source, to_topic, target)
    assert notes.check("b", NEAR, "b", FAR) is None
    with pytest.raises(OptionError, match="copied to itself"):
        notes.check("b", NEAR, "b", NEAR)
    (tmp_path / "topics" / "a.json").write_text("{")
    with pytest.raises(CheckpointError, match="restore it from a copy"):
        notes.read("a")


def test_checkpoints_of_one_topic_are_read(tmp_path: Path) -> None:
    pair = {
        "source": {"topic": "a", "cluster_id": "near", "topic_id": "1" * 32},
        "target": {"topic": "b", "cluster_id": "far", "topic_id": "2" * 32},
    }
    (tmp_path / "mirror.json").write_text(json.dumps(pair))
    assert Notes(tmp_path).read("a") == Note(NEAR, "b", FAR, None)
    assert Notes(tmp_path).read("c") is None


class Copy:
    """A partition and its copy, with what lies between records on either side."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.source: list[int] = []
        self.copies: list[int] = []
        self.end = self._random.choice([0, 70])
        self.end_there = self._random.choice([0, 30])
        self.syncs = begun({}, {("t", 0): self.end}, {("t", 0): self.end_there})

    def cycle(self) -> None:
        """Records come, some are taken out by compaction, and what is there is copied."""
        holes, marker = self._random.random() < 0.3, self._random.random() < 0.3
        rows = 0
        for _ in range(self._random.randrange(30)):
            if holes and self._random.random() < 0.5:
                self.end += 1
                continue
            self.source.append(self.end)
            self.copies.append(self.end_there)
            self.end, self.end_there, rows = self.end + 1, self.end_there + 1, rows + 1
        # A batch that was sent again, somebody else's records, a marker of a transaction.
        if self._random.random() < 0.2:
            self.end_there += self._random.randrange(1, 5)
        self.end_there += marker
        name = ("t", 0)
        self.syncs = advanced(
            self.syncs, {name: self.end}, {name: self.end_there}, rows=rows, markers=marker
        )

    def check(self, offset: int) -> bool:
        """Whether an offset is translated exactly; fails if a record would be left out."""
        found = translated(self.syncs["t", 0], offset)
        assert found is not None
        # Where the first record is that a group at this offset hasn't read.
        place = bisect_left(self.source, offset)
        true = self.copies[place] if place < len(self.copies) else self.end_there
        assert found <= true
        return found == true


@pytest.mark.parametrize("seed", range(20))
def test_343_no_record_is_left_out(seed: int) -> None:
    copy = Copy(seed)
    exact = 0
    for _ in range(150):
        copy.cycle()
    for offset in range(copy.end + 10):
        exact += copy.check(offset)
    assert exact > copy.end // 50
    assert len(copy.syncs["t", 0]) <= 64


def test_343_where_nothing_is_missing_it_is_exact() -> None:
    syncs = [Sync(100, 0, True)]
    for end in (150, 200, 300):
        syncs = extended(syncs, end, end - 100, all_there=True, markers=0)
    assert [translated(syncs, at) for at in (3, 100, 120, 199, 300, 350)] == [
        0,
        0,
        20,
        99,
        200,
        200,
    ]
    gap = extended(syncs, 400, 250, all_there=False, markers=0)
    assert [translated(gap, at) for at in (299, 350, 400)] == [199, 200, 250]


def test_343_what_was_before_the_first_pair_is_not_known() -> None:
    syncs = advanced({}, {("t", 0): 50}, {("t", 0): 10}, rows=50, markers=0)["t", 0]
    assert [translated(syncs, at) for at in (49, 50)] == [None, 10]
    assert translated([], 5) is None


def test_pairs_are_kept(tmp_path: Path) -> None:
    store = SyncStore(tmp_path)
    syncs = begun(
        {}, {("a", 0): 1, ("a", 1): 2, ("b", 0): 3}, {("a", 0): 4, ("a", 1): 5, ("b", 0): 6}
    )
    store.write({}, syncs)
    assert store.read(["a", "b", "c"]) == syncs
    assert set(store.read(["b"])) == {("b", 0)}
    (tmp_path / "syncs" / "b.json").write_text('{"0": [[1]]}')
    with pytest.raises(CheckpointError, match="restore it from a copy"):
        store.read(["b"])

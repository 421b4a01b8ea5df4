"""The map of offsets against a plain dict, and its columns at their limits."""

from __future__ import annotations

import random
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.groups import names, offset_pages
from kraftpy.core.groups.names import NameTable
from kraftpy.core.groups.offset_pages import LEAF_MAX, Page
from kraftpy.core.groups.offset_runs import OffsetRun
from kraftpy.core.groups.offsets import OffsetMap, OffsetRow, no_offset
from kraftpy.core.groups.records import CommittedOffset, OffsetRecord

Model = dict[tuple[str, str, int], CommittedOffset]

NOW_MS = 1_700_000_000_000

some_names = st.sampled_from(["", "a", "b", "ä", "long" * 30]) | st.text(
    st.characters(codec="utf-8"), max_size=3
)
times_ms = (
    st.integers(NOW_MS, NOW_MS + 10)
    | st.integers(NOW_MS - 2**33, NOW_MS + 2**33)
    | st.sampled_from([-1, 0, 2**63 - 1, -(2**63)])
)
committed_offsets = st.builds(
    CommittedOffset,
    st.integers(0, 100) | st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 5) | st.sampled_from([2**15 - 1, 2**15, 2**31 - 1, -(2**31)]),
    st.just("") | st.text(st.characters(codec="utf-8"), max_size=3),
    times_ms,
    st.just(-1) | st.integers(0, 2**63 - 1),
)
partitions = st.integers(0, 20) | st.sampled_from([2**31 - 1])
records = st.builds(OffsetRecord, some_names, some_names, partitions, st.none() | committed_offsets)


@st.composite
def runs(draw: st.DrawFn) -> OffsetRun:
    """Partitions that ascend without or with gaps, or in any order and more than once."""
    start, count = draw(st.integers(0, 12)), draw(st.integers(1, 9))
    partitions = draw(
        st.just(list(range(start, start + count)))
        | st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True).map(sorted)
        | st.lists(st.integers(0, 20), min_size=1, max_size=8)
    )
    plain = draw(
        st.lists(committed_offsets, min_size=len(partitions), max_size=len(partitions))
        | st.builds(
            CommittedOffset, st.just(5), st.just(1), st.just(""), st.just(NOW_MS), st.just(-1)
        ).map(lambda committed: [committed] * len(partitions))
    )
    columns = [list(column) for column in zip(*plain, strict=True)]
    return OffsetRun(
        draw(some_names), draw(some_names), partitions, columns[0], columns[1], columns[3]
    )


@st.composite
def commits(draw: st.DrawFn) -> list[OffsetRecord]:
    """What one request writes: partitions of a topic that ascend, some of them maybe new."""
    group, topic = draw(st.sampled_from("ab")), "t"
    indexes = draw(st.sets(st.integers(0, 20), min_size=2, max_size=12))
    committed = draw(committed_offsets)
    return [OffsetRecord(group, topic, i, committed) for i in sorted(indexes)]


def check(offsets: OffsetMap, model: Model) -> None:
    groups: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
    topics: dict[str, dict[str, list[int]]] = {}
    for (group, topic, index), c in model.items():
        groups.setdefault(group, {})[topic, index] = c
        topics.setdefault(topic, {}).setdefault(group, []).append(index)
    assert len(offsets) == len(model)
    assert sorted(offsets.group_ids()) == sorted(groups)
    assert offsets.groups_count == len(groups)
    for group, mine in groups.items():
        assert group in offsets
        found = list(offsets.of_group(group))
        assert len(found) == len(mine)
        assert {(topic, index): c for topic, index, c in found} == mine
        assert sorted(offsets.partitions_of(group)) == sorted(mine)
        rows = offsets.rows_of_group(group)
        assert len(rows) == len({topic for topic, _ in mine})
        assert {(topic, one[0]): one[1:] for topic, of_topic in rows for one in of_topic} == {
            place: c[:3] for place, c in mine.items()
        }
        for rows_max in (1, 3, 64):
            pieces = list(offsets.pieces_of_group(group, rows_max))
            assert max(len(of_topic) for _, of_topic in pieces) <= rows_max
            joined: dict[str, list[OffsetRow]] = {}
            for topic, of_topic in pieces:
                joined.setdefault(topic, []).extend(of_topic)
            assert list(joined.items()) == rows
        oldest_ms = offsets.oldest_ms(group)
        if oldest_ms is not None:
            assert oldest_ms == min(c.commit_timestamp_ms for c in mine.values())
            assert all(c.expire_timestamp_ms == -1 for c in mine.values())
    for topic, wanted in topics.items():
        assert sorted(offsets.groups_reading(topic)) == sorted(wanted)
        for group, indexes in wanted.items():
            assert sorted(offsets.partitions_of_topic(group, topic)) == sorted(indexes)
    for (group, topic, index), c in model.items():
        assert offsets.get(group, topic, index) == c
        around = [index, index ^ 1, index, 0, -1]
        assert offsets.rows(group, topic, around) == [row(model, group, topic, i) for i in around]


def row(model: Model, group: str, topic: str, index: int) -> tuple[int, int, int, str]:
    c = model.get((group, topic, index))
    return no_offset(index) if c is None else (index, *c[:3])


def apply(model: Model, record: OffsetRecord) -> None:
    group, topic, index, committed = record
    if committed is None:
        model.pop((group, topic, index), None)
    else:
        model[group, topic, index] = committed


@pytest.fixture
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves of a few entries, so that few entries make many."""
    for module in (names, offset_pages):
        name = "_LEAF_MAX" if module is names else "LEAF_MAX"
        monkeypatch.setattr(module, name, 4)
        monkeypatch.setattr(module, "_LEAF_MERGE_MAX", 3)
    monkeypatch.setattr(names, "_RECENT_MAX", 3)


@pytest.mark.usefixtures("small_leaves")
class TestAgainstADict:
    @given(st.lists(st.lists(records, max_size=20) | commits(), max_size=8))
    def test_whatever_is_replayed(self, batches: list[list[OffsetRecord]]) -> None:
        offsets, model = OffsetMap(), Model()
        for batch in batches:
            offsets.replay(batch)
            for record in batch:
                apply(model, record)
            check(offsets, model)

    @given(st.lists(runs() | records, max_size=12))
    def test_whatever_is_loaded(self, steps: list[OffsetRun | OffsetRecord]) -> None:
        offsets, model = OffsetMap(), Model()
        for step in steps:
            if isinstance(step, OffsetRecord):
                offsets.replay([step])
                apply(model, step)
                continue
            offsets.put_run(step)
            for index, offset, epoch, time_ms in zip(*step[2:], strict=True):
                committed = CommittedOffset(offset, epoch, "", time_ms, -1)
                apply(model, OffsetRecord(step.group_id, step.topic, index, committed))
        check(offsets, model)
        for page in offsets._pages:  # no leaf has grown too large, none is out of order
            keys = [key for leaf in page.leaves for key in leaf.keys]
            assert keys == sorted(set(keys))
            assert all(len(leaf.keys) <= offset_pages.LEAF_MAX for leaf in page.leaves)

    @pytest.mark.parametrize("seed", range(5))
    def test_growing_and_shrinking(self, seed: int) -> None:
        """Many groups, topics and partitions; then all of them go, in another order."""
        rng = random.Random(seed)
        offsets, model = OffsetMap(), Model()
        for step in range(3_000):
            group = f"group-{rng.randrange(1500 if seed % 2 else 5)}"
            index = rng.randrange(5 if seed % 2 else 300)
            record = OffsetRecord(group, f"t{rng.randrange(3)}", index, None)
            if rng.random() < 0.7:
                metadata = "m" if rng.random() < 0.01 else ""
                time_ms = NOW_MS + step * rng.choice([1, 10**7])
                record = record._replace(
                    committed=CommittedOffset(step, step % 7, metadata, time_ms, -1)
                )
                if rng.random() < 0.5:
                    offsets.put(*record)  # type: ignore[arg-type]
                else:
                    offsets.replay([record])
            else:
                offsets.remove(*record[:3])
            apply(model, record)
        check(offsets, model)
        left = list(model)
        rng.shuffle(left)
        for place in left[:-1]:
            offsets.remove(*place)
        check(offsets, {left[-1]: model[left[-1]]})
        offsets.remove(*left[-1])
        check(offsets, {})

    @given(st.lists(st.tuples(st.booleans(), some_names), max_size=60))
    def test_names(self, steps: list[tuple[bool, str]]) -> None:
        table, model = NameTable(), dict[str, int]()
        for is_there, name in steps:
            if is_there and name not in model:
                model[name] = table.add(name)
            elif not is_there and name in model:
                table.remove(model.pop(name))
            assert sorted(table) == sorted(model)
            assert len(table) == len(model) == len(set(model.values()))
            for each, number in model.items():
                assert table.number_of(each) == number
                assert table.name_of(number) == each
            assert table.number_of(name) == model.get(name)


def test_names_whose_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "hash", len, raising=False)
    monkeypatch.setattr(names, "_LEAF_MAX", 4)
    monkeypatch.setattr(names, "_RECENT_MAX", 1)
    table = NameTable()
    numbers = {f"{index:03}": table.add(f"{index:03}") for index in range(20)}
    for name, number in list(numbers.items())[::3]:
        table.remove(number)
        del numbers[name]
    assert {name: table.number_of(name) for name in numbers} == numbers
    assert table.number_of("000") is None
    assert table.number_of("xxxx") is None


def test_names_of_the_longest_kind() -> None:
    """More text than 16 bits can point at, and back."""
    table = NameTable()
    long = [letter * 32_767 for letter in "abc"]
    numbers = [table.add(name) for name in long]
    assert [table.name_of(number) for number in numbers] == long
    table.remove(numbers[0])
    assert list(table) == long[1:]
    assert table.add("short") == numbers[0]
    assert list(table) == ["short", *long[1:]]


def test_columns_are_narrow_until_a_value_does_not_fit() -> None:
    page = Page(NOW_MS)

    def put(key: int, epoch: int, time_ms: int) -> None:
        page.put(key, CommittedOffset(key, epoch, "", time_ms, -1))

    put(1, 3, NOW_MS)
    put(2, 2**15 - 1, NOW_MS + 20 * 86_400_000)
    (leaf,) = page.leaves
    assert (leaf.times.typecode, leaf.epochs.typecode) == ("I", "h")
    put(3, 1, NOW_MS + 40 * 86_400_000)  # other times fit around another base
    assert leaf.times.typecode == "I"
    put(2, 2**15, NOW_MS + 60 * 86_400_000)
    assert (leaf.times.typecode, leaf.epochs.typecode) == ("q", "i")
    assert [page.get(key) for key in (1, 2, 3)] == [
        CommittedOffset(1, 3, "", NOW_MS, -1),
        CommittedOffset(2, 2**15, "", NOW_MS + 60 * 86_400_000, -1),
        CommittedOffset(3, 1, "", NOW_MS + 40 * 86_400_000, -1),
    ]


def test_a_leaf_is_split_before_it_is_large() -> None:
    page = Page(NOW_MS)
    for key in range(10 * LEAF_MAX):
        page.put(key * 7919 % 100_003, CommittedOffset(key, -1, "", NOW_MS, -1))
    assert all(len(leaf.keys) <= LEAF_MAX for leaf in page.leaves)
    assert page.firsts[1:] == array("Q", [leaf.keys[0] for leaf in page.leaves[1:]])
    keys = [key for leaf in page.leaves for key in leaf.keys]
    assert keys == sorted(set(keys))
    assert len(keys) == 10 * LEAF_MAX


def test_metadata_takes_room_only_while_there_is_any() -> None:
    offsets = OffsetMap()
    offsets.put("g", "t", 0, CommittedOffset(1, -1, "note", NOW_MS, -1))
    offsets.put("g", "t", 1, CommittedOffset(1, -1, "", NOW_MS, NOW_MS + 1))
    assert offsets.oldest_ms("g") is None
    offsets.replay([OffsetRecord("g", "t", 0, CommittedOffset(2, -1, "", NOW_MS, -1))])
    offsets.remove("g", "t", 1)
    assert offsets.get("g", "t", 0) == CommittedOffset(2, -1, "", NOW_MS, -1)
    assert offsets.oldest_ms("g") == NOW_MS


def test_a_new_offset_splits_the_leaf_of_those_that_follow_it_in_the_batch() -> None:
    offsets, model = OffsetMap(), Model()
    some = [range(0, 2 * LEAF_MAX, 2), range(3 * LEAF_MAX // 2 - 1, 2 * LEAF_MAX)]
    for offset, indexes in enumerate(some):
        committed = CommittedOffset(offset, -1, "", NOW_MS, -1)
        batch = [OffsetRecord("g", "t", index, committed) for index in indexes]
        offsets.replay(batch)
        for record in batch:
            apply(model, record)
    check(offsets, model)


def test_a_piece_of_a_large_group_is_little_work_and_the_group_may_go_meanwhile() -> None:
    """A scrape looks at a group on the broker's loop, between whatever changes it."""
    offsets = OffsetMap()
    for partition in range(10_000):
        offsets.put("g", "t", partition, CommittedOffset(7, -1, "", 0, -1))
    took_s = []
    for _ in range(20):
        started = time.process_time()
        pieces = offsets.pieces_of_group("g", 64)
        _, first = next(pieces)
        took_s.append(time.process_time() - started)
    assert min(took_s) < 0.0005
    assert [row[0] for row in first] == list(range(64))
    offsets.put("g", "s", 1, CommittedOffset(8, -1, "", 0, -1))
    for partition in range(64, 9_999):
        offsets.remove("g", "t", partition)
    assert list(pieces) == [("t", [(9_999, 7, -1, "")]), ("s", [(1, 8, -1, "")])]
    pieces = offsets.pieces_of_group("g", 1)
    next(pieces)
    for topic, partition in offsets.partitions_of("g"):
        offsets.remove("g", topic, partition)
    assert "g" not in offsets
    assert list(pieces) == []

"""How much a broker looks at between two frames: a slice is as long as one frame makes it.

Counted, not timed: `channel` ends a slice by the clock after each frame, so what has to hold is
that no frame takes more work the more partitions, topics or committed offsets there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kraftpy.core.config import BrokerConfig
from kraftpy.core.groups.offsets import OffsetRow
from kraftpy.core.leases.share_state import Summary
from kraftpy.core.leases.state_records import ShareKey
from kraftpy.core.metadata.partition_changes import TopicRules
from kraftpy.core.transactions import Transaction, TransactionState
from kraftpy.core.transactions.states import NO_PARTITIONS
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.frames import GROUP_OFFSETS, PARTITIONS, ROWS_MAX, SAMPLES, SHARE_STATES
from kraftpy.metrics.instruments import LAG_BUCKETS, Histogram, Traffic, TransactionNumbers
from kraftpy.metrics.metadata import metadata_frames
from kraftpy.server.coordination.led_table import LeaseMeters
from kraftpy.server.node import metrics as module
from kraftpy.server.node.metrics import BrokerNumbers
from kraftpy.server.node.share_metrics import RUNS_OF_A_FRAME, lease_frames
from kraftpy.server.replication.opening import BatchOpener
from kraftpy.server.replication.range_reads import RangeReads

PARTITIONS_IN_ALL = 10_000
OFFSETS = 10_000
IDS = 100_000
IDS_OF_A_FRAME = 500
SHARES = 1_000
TABLES, RUNS = 100, 1_000
NOW_MS = 10_000_000
HANGING_BEFORE_MS = NOW_MS - 900_000 - 300_000
TOPICS = pytest.mark.parametrize("topics", [1, 100, PARTITIONS_IN_ALL])
SAMPLES_OF_A_TOPIC = 8
SAMPLES_OF_THE_BROKER = 64


class Looks:
    """How often anything was looked at of which there are many."""

    def __init__(self) -> None:
        self.count = 0


class Partition:
    """One that leads, with two followers, and counts each look at it."""

    def __init__(self, index: int, looks: Looks) -> None:
        self.index = index
        self.high_watermark = 5
        self.last_stable_offset = 3
        state = SimpleNamespace(isr=[1, 2], replicas=[1, 2], leader=1, adding=[], removing=[])
        followers = [SimpleNamespace(id=2, offset=3)]
        self.leadership = SimpleNamespace(state=state, min_isr=1, followers=followers, settled=True)
        self._log = SimpleNamespace(
            offline=False,
            size_bytes=10,
            log_start_offset=0,
            log_end_offset=5,
            producers=SimpleNamespace(is_hanging=lambda before_ms: before_ms == HANGING_BEFORE_MS),
        )
        self._looks = looks

    @property
    def log(self) -> Any:
        self._looks.count += 1
        return self._log

    def count_received(self) -> None:
        pass


class Replicas:
    """So many partitions, evenly among topics."""

    def __init__(self, topics: int, looks: Looks) -> None:
        self.traffic = Traffic()
        self.range_reads = RangeReads(BrokerConfig(), cast("BatchOpener", None))
        for number in range(topics):
            self.traffic.topic(f"t{number}", number.to_bytes(16, "big"))
        each = range(PARTITIONS_IN_ALL // topics)
        self._topics = {
            f"t{number}": [Partition(index, looks) for index in each] for number in range(topics)
        }
        self._looks = looks

    def by_topic(self) -> Iterator[tuple[str, list[Partition]]]:
        yield from self._topics.items()

    def replica(self, topic: str, index: int) -> Partition:
        self._looks.count += 1
        return self._topics[topic][index % len(self._topics[topic])]


class Groups:
    """One group with so many committed offsets."""

    loads = Histogram(LAG_BUCKETS)
    offsets_count = OFFSETS

    def __init__(self) -> None:
        self.offsets = self

    def machines(self) -> list[tuple[int, Groups]]:
        return [(0, self)]

    def warm_machines(self) -> list[Groups]:
        return []

    def loading(self) -> list[object]:
        return []

    def group_ids(self) -> list[str]:
        return ["g"]

    def summary(self, group_id: str) -> tuple[str, str, int]:
        return "classic", "Stable", 1

    def pieces_of_group(
        self, group_id: str, rows_max: int
    ) -> Iterator[tuple[str, list[OffsetRow]]]:
        for start in range(0, OFFSETS, rows_max):
            indexes = range(start, min(start + rows_max, OFFSETS))
            yield "t0", [cast("OffsetRow", (index, 4)) for index in indexes]


class Transactions:
    """So many ids, every tenth with an open transaction, every hundredth in need of markers."""

    numbers = TransactionNumbers()

    def __init__(self, looks: Looks) -> None:
        idle = Transaction(
            TransactionState.EMPTY, 1, 0, -1, -1, -1, 60_000, NO_PARTITIONS, -1, NOW_MS, 0
        )
        is_open = idle._replace(state=TransactionState.ONGOING, start_ms=NOW_MS - 60_000)
        decided = is_open._replace(
            state=TransactionState.PREPARE_COMMIT, start_ms=NOW_MS - 60_001, update_ms=NOW_MS - 5000
        )
        self._ids = [decided, *[is_open] * 9, *[idle] * 90] * (IDS // 100)
        self._looks = looks

    def loaded_transactions(self) -> Iterator[list[tuple[str, Transaction]]]:
        for start in range(0, IDS, IDS_OF_A_FRAME):
            self._looks.count += IDS_OF_A_FRAME
            yield [("t", each) for each in self._ids[start : start + IDS_OF_A_FRAME]]


class ShareStates:
    """So many partitions of a share group."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def keys(self) -> Iterator[ShareKey]:
        return (ShareKey("s", bytes(16), number) for number in range(SHARES))

    def summary(self, key: ShareKey) -> Summary:
        self._looks.count += 1
        return Summary(0, 0, 1, 2)


class Leases:
    """Tables, half of them full of short runs."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self.meters = LeaseMeters()
        self.sessions = [None] * 3

    def tables(self) -> list[Leases]:
        return [self] * TABLES

    runs_count = RUNS
    is_full = True

    def records_by_state(self) -> dict[int, int]:
        self._looks.count += RUNS
        return {0: 1, 1: 2, 2: 3, 8 | 2: 4}


def numbers_of(topics: int, looks: Looks) -> BrokerNumbers:
    changes = SimpleNamespace(shrinks=0, expansions=0, unclean_elections=0)
    broker = SimpleNamespace(
        config=SimpleNamespace(kraftpy_metrics_partitions=True, transaction_max_timeout_ms=900_000),
        now_ms=lambda: NOW_MS,
        transactions=Transactions(looks),
        transaction_questions=SimpleNamespace(answers={}),
        groups=Groups(),
        leader_changes=changes,
        metadata=SimpleNamespace(
            topics={}, topics_by_id={bytes(16): SimpleNamespace(name="t0", id=bytes(16))}
        ),
        replicas=Replicas(topics, looks),
        share_coordinator=SimpleNamespace(machines=lambda: [(0, ShareStates(looks))]),
        leases=Leases(looks),
    )
    return BrokerNumbers(cast("Any", broker), cast("Any", None))


def check_frames(frames: Iterator[Frame], looks: Looks, looks_max: int) -> int:
    """No frame holds or took more than a bounded part; how many there were."""
    before = count = 0
    for kind, payload in frames:
        count += 1
        assert looks.count - before <= looks_max
        before = looks.count
        if kind == SAMPLES:
            assert len(payload) <= SAMPLES_OF_THE_BROKER + SAMPLES_OF_A_TOPIC * ROWS_MAX
        elif kind in (PARTITIONS, GROUP_OFFSETS):
            assert len(payload[2]) <= ROWS_MAX
    return count


@TOPICS
def test_a_frame_looks_at_so_many_partitions_however_many_there_are(topics: int) -> None:
    looks = Looks()
    count = check_frames(numbers_of(topics, looks)._partitions(), looks, ROWS_MAX)
    assert looks.count == PARTITIONS_IN_ALL
    assert count >= PARTITIONS_IN_ALL / ROWS_MAX


@TOPICS
def test_a_frame_tells_of_so_many_topics_however_many_there_are(topics: int) -> None:
    looks = Looks()
    count = check_frames(numbers_of(topics, looks)._topics(), looks, 0)
    assert count >= topics / ROWS_MAX


def test_a_frame_looks_at_so_many_committed_offsets_however_many_there_are() -> None:
    looks = Looks()
    count = check_frames(numbers_of(100, looks)._groups(), looks, 2 * ROWS_MAX)
    assert looks.count == OFFSETS + 2 * SHARES
    assert count >= OFFSETS / ROWS_MAX


def test_a_frame_looks_at_so_many_transactional_ids_however_many_there_are() -> None:
    looks = Looks()
    told: list[Any] = []

    def frames() -> Iterator[Frame]:
        for frame in numbers_of(1, looks)._transactions():
            told.extend(frame[1])
            yield frame

    check_frames(frames(), looks, IDS_OF_A_FRAME)
    assert looks.count == IDS
    values = {(name, *labels): value for name, labels, value in told}
    assert values["kraftpy_transactions", "Empty"] == IDS * 90 // 100
    assert values["kraftpy_transactions", "Ongoing"] == IDS * 9 // 100
    assert values["kraftpy_transactions", "PrepareCommit"] == IDS // 100
    assert values["kraftpy_transactions", "CompleteAbort"] == 0
    assert values["kraftpy_transactions_late",] == IDS // 100
    assert values["kraftpy_transaction_markers_oldest_seconds",] == 5


def test_what_transactions_hold_back_is_told_by_topic() -> None:
    told = [
        row
        for kind, payload in numbers_of(100, Looks())._partitions()
        if kind == SAMPLES
        for row in payload
    ]
    lags = {
        tuple(labels): value for name, labels, value in told if name == "kraftpy_lso_lag_records"
    }
    assert lags == {(f"t{number}",): 2 for number in range(100)}
    hanging = [row[2] for row in told if row[0] == "kraftpy_partitions_with_hanging_transactions"]
    assert hanging == [PARTITIONS_IN_ALL]


def test_offsets_that_are_left_out_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert hangs on it: without their lag nobody hears of these groups."""
    for limit, truncated in ((OFFSETS + SHARES + 2, 0), (OFFSETS // 2, 1)):
        monkeypatch.setattr(module, "OFFSETS_MAX", limit)
        told = [
            row
            for kind, payload in numbers_of(100, Looks())._groups()
            if kind == SAMPLES
            for row in payload
        ]
        values = [value for name, _, value in told if name == "kraftpy_metrics_truncated"]
        assert values == [truncated]


def test_share_groups_are_told_of_as_far_as_offsets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, told in ((OFFSETS + SHARES + 2, SHARES), (OFFSETS + 101, 100)):
        monkeypatch.setattr(module, "OFFSETS_MAX", limit)
        frames = [
            payload for kind, payload in numbers_of(100, Looks())._groups() if kind == SHARE_STATES
        ]
        assert max(map(len, frames)) <= ROWS_MAX
        rows = [row for frame in frames for row in frame]
        assert len(rows) == told
        assert rows[0] == ["s", "t0", 0, 3, 2]


def test_a_frame_looks_at_so_many_leases_however_many_there_are() -> None:
    looks = Looks()
    frames = list(lease_frames(numbers_of(1, looks)._broker))
    assert looks.count == TABLES * RUNS
    assert len(frames) == TABLES * RUNS // RUNS_OF_A_FRAME + 1
    found = {(name, *labels): value for name, labels, value in frames[-1][1]}
    leases = {key[1]: value for key, value in found.items() if key[0] == "kraftpy_leases"}
    assert leases == {
        "available": TABLES,
        "acquired": 2 * TABLES,
        "acknowledged": 3 * TABLES,
        "archived": 0,
        "in_transition": 4 * TABLES,
    }
    assert found["kraftpy_share_partitions_full",] == TABLES


@TOPICS
def test_a_frame_of_the_metadata_has_so_many_partitions_however_many_there_are(topics: int) -> None:
    partition = SimpleNamespace(
        leader=1, leader_epoch=0, replicas=[1], isr=[1], elr=[], adding=[], removing=[]
    )
    each = dict.fromkeys(range(PARTITIONS_IN_ALL // topics), partition)
    state = SimpleNamespace(
        brokers={},
        topics={
            f"t{number}": SimpleNamespace(name=f"t{number}", internal=False, partitions=each)
            for number in range(topics)
        },
        config=lambda kind, name: {},
        common_rules=TopicRules(1, unclean=False),
    )
    total = 0
    for _, rows in metadata_frames(cast("Any", state)):
        size = sum(len(topic[3]) for topic in rows)
        assert size <= ROWS_MAX
        total += size
    assert total == PARTITIONS_IN_ALL

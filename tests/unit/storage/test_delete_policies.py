"""Delete policies: the built-in ones, and what a log and the manager do with a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftpy.storage.deleting.policies import (
    AgePolicy,
    DeletePolicy,
    LogFacts,
    LogStartPolicy,
    SizePolicy,
    deletable,
)
from kraftpy.storage.deleting.process import PolicyProcess, ReportedSegment
from tests.unit.storage.support import SMALL, Store, append, batch, with_config

SEGMENTS = [
    ReportedSegment(
        base_offset=n * 10,
        end_offset=n * 10 + 10,
        size_bytes=100,
        bytes_behind=behind,
        newest_ms=1000 * n,
    )
    for n, behind in enumerate((300, 200, 100, 0))
]


@pytest.mark.parametrize(
    ("policies", "facts", "count"),
    [
        ([LogStartPolicy()], {"log_start_offset": 25}, 2),
        ([SizePolicy()], {"retention_bytes": 150}, 2),
        ([SizePolicy()], {"retention_bytes": 0}, 4),
        ([SizePolicy()], {"retention_bytes": -1}, 0),
        ([AgePolicy()], {"retention_ms": 2500}, 3),
        ([AgePolicy()], {"retention_ms": -1}, 0),
        ([LogStartPolicy(), SizePolicy(), AgePolicy()], {"log_start_offset": 10}, 1),
        ([], {}, 0),
    ],
)
def test_the_oldest_go_up_to_the_first_that_stays(
    policies: list[DeletePolicy], facts: dict[str, int], count: int
) -> None:
    values = {"log_start_offset": 0, "size_bytes": 400, "retention_ms": -1, "retention_bytes": -1}
    log = LogFacts("t", 0, **(values | facts))
    assert deletable(policies, log, SEGMENTS, now_ms=5000) == count


class Answers(PolicyProcess):
    """Answers at once, with what the test says."""

    def __init__(self, count: int) -> None:
        super().__init__("a.Policy")
        self.count = count
        self.told: list[tuple[LogFacts, list[ReportedSegment]]] = []
        self._answer: list[int] | None = None

    def ask(self, now_ms: int) -> None:
        self.told, self._logs, self._count = self._logs, [], 0
        self._answer = [self.count] * len(self.told)

    @property
    def busy(self) -> bool:
        return self._answer is not None

    def poll(self) -> list[int] | None:
        answer, self._answer = self._answer, None
        return answer


def store_with(tmp_path: Path, policy: PolicyProcess, **config: object) -> Store:
    store = Store(tmp_path / "data", with_config(SMALL, **config))
    store.manager._policy = policy
    log = store.log()
    for number in range(40):
        append(log, batch(3, timestamp=store.clock.now_ms + number, step=0))
    store.clock.now_ms += 10_000_000
    return store


def test_what_a_policy_lets_go_goes(tmp_path: Path) -> None:
    policy = Answers(2)
    store = store_with(tmp_path, policy)
    log = store.log()
    bases = [segment.base_offset for segment in log.segments]
    store.tick()
    store.tick()
    ((facts, segments),) = policy.told
    assert (facts.topic, facts.partition, facts.retention_ms) == ("t", 0, -1)
    assert [each.base_offset for each in segments] == bases[:-1], "the last one isn't asked about"
    assert [segment.base_offset for segment in log.segments] == bases[2:]
    assert log.log_start_offset == bases[2]


def test_nothing_above_the_high_watermark_and_no_compacted_topic_is_asked_about(
    tmp_path: Path,
) -> None:
    policy = Answers(100)
    store = store_with(tmp_path, policy)
    log = store.log()
    bases = [segment.base_offset for segment in log.segments]
    store.tick(high_watermark=bases[2])
    store.tick(high_watermark=bases[2])
    assert [segment.base_offset for segment in log.segments] == bases[2:]
    compacted = store_with(tmp_path / "c", Answers(100), cleanup_policy=frozenset({"compact"}))
    before = len(compacted.log().segments)
    compacted.tick()
    compacted.tick()
    assert len(compacted.log().segments) == before


def test_what_isn_t_as_it_was_when_it_was_asked_about_stays(tmp_path: Path) -> None:
    store = store_with(tmp_path, Answers(0))
    log = store.log()
    segments = log.report(log.log_end_offset, 3)
    assert len(segments) == 3
    assert log.delete_reported(segments[1:], log.log_end_offset) == 0
    assert log.delete_reported(segments, segments[1].end_offset) == 2
    assert log.delete_reported(segments, log.log_end_offset) == 0
    log.truncate_fully_and_start_at(0)
    assert log.delete_reported(segments, log.log_end_offset) == 0

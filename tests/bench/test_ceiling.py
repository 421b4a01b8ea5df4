"""The ceilings that stand beside a race's commits are those of nodes that do less for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.groups.offset_runs import read_offset_runs
from kraftpy.protocol.record_batch import RECORD_BATCH_OVERHEAD, split_batches
from tests.bench import groups, measure, replicated
from tests.bench.ceiling import Answering, Committing, CommittingQuorum, RelayingQuorum
from tests.bench.commit_builds import log_path
from tests.processes import Kraftpy, running
from tests.quorums import KraftpyQuorum
from tests.quorums import running as running_quorum

COMMITS = 200
STOP_S = 15.0  # of itself: `stop` kills later than that


def commit(
    entrant: Any,
    topic_of: Callable[[int], AbstractContextManager[str]],
    partitions: int = 2,
    clients: int = 2,
) -> None:
    with groups.offset_work(
        entrant.bootstrap, topic_of, lambda: None, "commits", partitions, clients
    ) as rate:
        done = 0.0
        while done < COMMITS:
            done += 0.1 * rate(0.1)


def written_bytes(folders: Sequence[Path]) -> int:
    """What the logs of offsets have come to; folders are made with what is first written."""
    logs = [path for each in folders for path in each.rglob("__consumer_offsets-*/*.log")]
    return sum(path.stat().st_size for path in logs)


def test_a_commit_that_is_one_is_written(tmp_path: Path) -> None:
    with running(Kraftpy(tmp_path, **groups.SETTINGS)) as broker:
        commit(broker, lambda count: measure.partitions_on(broker, count))
        assert written_bytes([broker.log_dir])


@pytest.mark.parametrize("build", [Answering, Committing])
def test_what_bounds_commits_says_that_all_was_committed(
    build: type[Kraftpy], tmp_path: Path
) -> None:
    with running(build(tmp_path, **groups.SETTINGS)) as broker:
        commit(broker, lambda count: measure.partitions_on(broker, count))
        assert not written_bytes([broker.log_dir])


@pytest.mark.parametrize("build", [RelayingQuorum, CommittingQuorum])
def test_three_nodes_say_so_when_the_others_have_answered(
    build: type[KraftpyQuorum], tmp_path: Path
) -> None:
    with running_quorum(build(tmp_path, **groups.SETTINGS)) as quorum:
        with replicated.topics_on(quorum, 1, 2) as (name,):
            commit(quorum, lambda _: nullcontext(name))
        assert not written_bytes(list(quorum.log_dirs.values()))


@pytest.mark.parametrize(("partitions", "clients"), [(1, 1), (100, groups.CLIENTS)])
def test_what_three_nodes_commit_is_in_the_files_of_all(
    partitions: int, clients: int, tmp_path: Path
) -> None:
    with running_quorum(CommittingQuorum(tmp_path, **groups.SETTINGS)) as quorum:
        with replicated.topics_on(quorum, 1, partitions) as (name,):
            commit(quorum, lambda _: nullcontext(name), partitions, clients)
        folders = quorum.log_dirs
        committed = Counter[str]()
        for leader in [each for each in folders if log_path(folders[each], each).exists()]:
            (log,) = {log_path(folder, leader).read_bytes() for folder in folders.values()}
            next_offset = 0
            for position, header in split_batches(log):
                assert header.base_offset == next_offset
                next_offset = header.last_offset + 1
                records = log[position + RECORD_BATCH_OVERHEAD : position + header.size_bytes]
                runs = read_offset_runs(records, header.records_count)
                assert runs is not None
                ((group_id, topic),) = {(run.group_id, run.topic) for run in runs}
                assert topic == name
                assert [each for run in runs for each in run.partitions] == list(range(partitions))
                committed[group_id] += 1
        assert len(committed) == clients
        assert committed.total() >= COMMITS
        stopping_at = time.monotonic()
        quorum.stop()
        assert time.monotonic() - stopping_at < STOP_S

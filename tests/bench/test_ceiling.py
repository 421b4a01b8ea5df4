"""The ceilings that stand beside a race's commits are those of nodes that do less for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.bench import groups, measure, replicated
from tests.bench.ceiling import Answering, Committing, RelayingQuorum
from tests.processes import Kraftpy, running
from tests.quorums import running as running_quorum

COMMITS = 200


def commit(entrant: Any, topic_of: Callable[[int], AbstractContextManager[str]]) -> None:
    with groups.offset_work(entrant.bootstrap, topic_of, lambda: None, "commits", 2, 2) as rate:
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


def test_three_nodes_say_so_when_the_others_have_answered(tmp_path: Path) -> None:
    with running_quorum(RelayingQuorum(tmp_path, **groups.SETTINGS)) as quorum:
        assert isinstance(quorum, RelayingQuorum)
        with replicated.topics_on(quorum, 1, 2) as (name,):
            commit(quorum, lambda _: nullcontext(name))
        assert not written_bytes(list(quorum.log_dirs.values()))

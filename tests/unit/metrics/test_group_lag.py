"""The lag of groups, completed by what leaders told: right, or not there."""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.metrics.collector import Scrape
from kraftpy.metrics.group_lag import ASK_TIMEOUT_S, complete
from kraftpy.metrics.log_ends import LogEnd

NOW = 100.0
Row = tuple[int, int, int | None]


class Told:
    """Ends that are known beforehand; remembers what was asked."""

    def __init__(self, ends: dict[tuple[str, int], LogEnd]) -> None:
        self.ends = ends
        self.wanted: Mapping[tuple[str, int], int] | None = None

    def ask(
        self, bootstrap: str, wanted: Mapping[tuple[str, int], int], timeout_s: float
    ) -> dict[tuple[str, int], LogEnd]:
        assert (bootstrap, timeout_s) == ("here:1", ASK_TIMEOUT_S)
        self.wanted = wanted
        return self.ends


def scrape_of(*rows: Row, shown: bool = True, group: str = "g") -> Scrape:
    """As a broker tells of one group and one topic."""
    known = sum(row[2] or 0 for row in rows)
    frames: list[list[object]] = [
        ["group", [group, 1, []]],
        ["group_offsets", [group, "t", [list(row) for row in rows], shown]],
        ["group", [group, None, [["t", sum(row[1] for row in rows), known]]]],
    ]
    return Scrape(frames, node_id=1)


def lags(scrape: Scrape) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("kafka_consumergroup_"), *list(sample.labels.values())[1:]): (
            sample.value
        )
        for family in scrape.collect()
        for sample in family.samples
        if "lag" in sample.name
    }


def test_what_leaders_told_is_added_to_what_the_coordinator_knows() -> None:
    scrape = scrape_of((0, 10, 5), (1, 20, None), (2, 7, None))
    told = Told({("t", 1): LogEnd(50, NOW - 1), ("t", 2): LogEnd(7, NOW + 1)})
    complete(scrape, lambda: told, "here:1", NOW)
    assert told.wanted == {("t", 1): 20, ("t", 2): 7}
    assert lags(scrape) == {
        ("lag", "t", "0"): 5,
        ("lag", "t", "1"): 30,
        ("lag", "t", "2"): 0,
        ("lag_sum", "t"): 35,
    }


def test_a_partition_that_nobody_tells_of_has_no_lag_and_its_topic_no_sum() -> None:
    scrape = scrape_of((0, 10, 5), (1, 20, None))
    complete(scrape, lambda: Told({}), "here:1", NOW)
    assert lags(scrape) == {("lag", "t", "0"): 5}


def test_an_end_from_before_the_commit_says_nothing() -> None:
    scrape = scrape_of((0, 20, None))
    complete(scrape, lambda: Told({("t", 0): LogEnd(19, NOW - 1)}), "here:1", NOW)
    assert lags(scrape) == {}


def test_a_commit_beyond_the_end_is_no_lag() -> None:
    scrape = scrape_of((0, 20, None))
    complete(scrape, lambda: Told({("t", 0): LogEnd(19, NOW + 0.1)}), "here:1", NOW)
    assert lags(scrape) == {("lag", "t", "0"): 0, ("lag_sum", "t"): 0}


def test_the_sum_needs_no_series_of_partitions() -> None:
    scrape = scrape_of((1, 20, None), shown=False)
    scrape.groups[-1][2][0][2] = 100  # partitions that the coordinator knows; no rows of them
    complete(scrape, lambda: Told({("t", 1): LogEnd(50, NOW)}), "here:1", NOW)
    assert lags(scrape) == {("lag_sum", "t"): 130}


def test_nobody_is_asked_where_the_coordinator_knows_all() -> None:
    scrape = scrape_of((0, 10, 5))
    told = Told({})
    complete(scrape, lambda: told, "here:1", NOW)
    assert told.wanted is None
    assert lags(scrape) == {("lag", "t", "0"): 5, ("lag_sum", "t"): 5}


def test_share_groups_are_as_far_as_they_are_done() -> None:
    scrape = scrape_of((0, 10, 5))
    scrape.share_states = [["s", "t", 0, 10, 5], ["s", "t", 1, 20, None], ["s", "u", 0, 3, None]]
    told = Told({("t", 1): LogEnd(50, NOW - 1)})
    complete(scrape, lambda: told, "here:1", NOW)
    assert told.wanted == {("t", 1): 20, ("u", 0): 3}
    found = {
        tuple(sample.labels.values()): sample.value
        for family in scrape.collect()
        for sample in family.samples
        if sample.name == "kraftpy_share_group_lag_records"
    }
    assert found == {("s", "t"): 35}

"""The boards of others find what they ask for: names and labels, or a reason why not."""

from __future__ import annotations

import pytest

from kraftpy.metrics.catalog import CATALOG, NOT_SERVED, Family
from tests.dashboards.foreign import LABELS_WE_LACK, SCRAPED, USED

ASKED = {name for metrics in USED.values() for name in metrics}


@pytest.mark.parametrize("board", USED)
def test_what_a_board_asks_for_is_served_or_said_not_to_be(board: str) -> None:
    for name, labels in USED[board].items():
        assert (name in CATALOG) != (name in NOT_SERVED), name
        if name not in CATALOG:
            continue
        for label in labels:
            served = label in CATALOG[name].labels
            assert served != ((name, label) in LABELS_WE_LACK), f"{name} and {label}"


def test_series_of_kafka_exporter_have_exactly_its_labels() -> None:
    """A user's alert may group by any of them, and one more label would split its series."""
    for name, labels in USED["kafka_exporter"].items():
        if name in CATALOG:
            assert CATALOG[name].labels == labels, name
    ours = {metric.name for metric in CATALOG.values() if metric.family is Family.KAFKA_EXPORTER}
    assert ours <= USED["kafka_exporter"].keys()


def test_every_exception_is_needed() -> None:
    assert NOT_SERVED.keys() <= ASKED
    assert all(label in USED["strimzi-kafka.json"][name] for name, label in LABELS_WE_LACK)


def test_no_metric_has_a_label_of_the_scrape() -> None:
    """Prometheus would call it exported_namespace and the like, and the boards find nothing."""
    for metric in CATALOG.values():
        assert not SCRAPED & set(metric.labels)

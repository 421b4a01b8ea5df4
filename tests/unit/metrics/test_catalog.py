"""The catalogue: what it says of every metric, and that what is served is in it."""

from __future__ import annotations

import re

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from kraftpy.metrics.catalog import CATALOG, Family, Kind, Metric
from kraftpy.metrics.collector import _DERIVED, Scrape
from kraftpy.metrics.frames import PartitionRow

EVERY = pytest.mark.parametrize("metric", CATALOG.values(), ids=lambda metric: metric.name)
UNITS = {"bytes", "seconds"}


@EVERY
def test_names_are_prometheus_names(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    assert metric.help.endswith(".")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


@EVERY
def test_native_names_say_their_unit(metric: Metric) -> None:
    if metric.family is Family.NATIVE and metric.unit:
        assert metric.unit in UNITS
        assert metric.name.removesuffix("_total").endswith(metric.unit)


@EVERY
def test_no_label_is_unbounded(metric: Metric) -> None:
    assert not {"client_id", "member_id", "client", "member", "host", "user"} & set(metric.labels)
    assert metric.per_partition == ("partition" in metric.labels)


def full_scrape() -> Scrape:
    """One that has every metric, as far as frames have it."""
    rows = [PartitionRow(0, 10, 5, 1, 2, 3, True, -1), PartitionRow(1, 10)]
    frames: list[list[object]] = [
        ["partitions", ['t"\\\n', 2, rows]],
        ["group", ["g", 2, []]],
        ["group_offsets", ["g", "t", [[0, 4, 1]], True]],
        ["group", ["g", None, [["t", 4, 1]]]],
        ["share_states", [["s", "t", 0, 4, 1], ["s", "t", 1, 5, 2], ["s", "u", 0, 6, None]]],
    ]
    scrape = Scrape(frames, node_id=1)
    for metric in CATALOG.values():
        if metric.name in _DERIVED:
            continue
        chosen = {"direction": "shrink", "process": "broker"}
        labels = [chosen.get(label, "x") for label in metric.labels]
        value = [[1] * (len(metric.buckets) + 1), 2.5] if metric.buckets else 3
        scrape.add(metric.name, value, *labels)
    scrape.add("kraftpy_isr_changes_total", 3, "expand")
    return scrape


def base(name: str) -> str:
    return name.removesuffix("_total")


def test_every_metric_of_the_catalogue_is_served_and_nothing_else() -> None:
    served = {family.name for family in full_scrape().collect()}
    assert served == {base(name) for name in CATALOG}


def test_both_text_formats_are_sound_and_say_the_same() -> None:
    from prometheus_client.exposition import generate_latest

    plain = list(parse(generate_latest(full_scrape()).decode()))  # type: ignore[arg-type]
    opened = list(parse_openmetrics(openmetrics(full_scrape()).decode()))  # type: ignore[arg-type]
    as_rows = [
        {(sample.name, *sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in plain
    ]
    assert as_rows == [
        {(sample.name, *sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in opened
    ]
    for family in plain:
        metric = CATALOG.get(family.name) or CATALOG[f"{family.name}_total"]
        assert family.documentation == metric.help
        assert family.type == metric.kind.value


def test_a_metric_that_is_not_in_the_catalogue_cannot_be_served() -> None:
    scrape = Scrape([], node_id=1)
    scrape.add("kraftpy_unheard_of", 1)
    with pytest.raises(KeyError, match="kraftpy_unheard_of"):
        list(scrape.collect())


def test_a_sample_has_the_labels_of_the_catalogue() -> None:
    scrape = Scrape([], node_id=1)
    scrape.add("kraftpy_partitions", 1, "too", "many")
    with pytest.raises(ValueError, match="argument"):
        list(scrape.collect())


def test_rows_become_the_exporters_metrics() -> None:
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in full_scrape().collect()
        for sample in family.samples
    }
    topic = 't"\\\n'
    assert found["kafka_topic_partition_current_offset", topic, "0"] == 5
    assert found["kafka_topic_partition_oldest_offset", topic, "0"] == 1
    assert found["kafka_topic_partition_under_replicated_partition", topic, "0"] == 1
    assert found["kafka_cluster_partition_underminisr", topic, "0"] == 1
    assert found["kafka_cluster_partition_atminisr", topic, "0"] == 0
    assert ("kafka_topic_partition_current_offset", topic, "1") not in found
    assert found["kafka_log_log_size", topic, "1"] == 10
    assert found["kafka_consumergroup_lag", "g", "t", "0"] == 1
    assert found["kafka_consumergroup_members", "g"] == 2
    assert found["kraftpy_share_group_finished_offset_sum", "s", "t"] == 9
    assert found["kraftpy_share_group_lag_records", "s", "t"] == 3
    assert ("kraftpy_share_group_lag_records", "s", "u") not in found

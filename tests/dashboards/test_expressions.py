"""How tests read PromQL: which metrics an expression is about."""

from __future__ import annotations

import pytest

from tests.dashboards.shipped import metric_of, names_in, substituted


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ("up", {"up"}),
        ('sum by (job, api) (rate(a_total{x="b{c}",y=~"d|e"}[5m]))', {"a_total"}),
        ("a / on (job) group_left (x) b > 0.5", {"a", "b"}),
        ("level:a:rate5m == 0 and level:a:rate5m offset 10m > 0", {"level:a:rate5m"}),
        ('count_values("broker", a{}) or vector(0)', {"a"}),
        ("topk(10, max by (le) (a_bucket))", {"a_bucket"}),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket[$__rate_interval])))", {"a_bucket"}),
        ("1000 * min(a{}) - bool", {"a"}),
        ("quantile(0.5, a)", {"a"}),
    ],
)
def test_names_are_found(expr: str, names: set[str]) -> None:
    assert names_in(expr) == names


def test_series_of_a_histogram_are_its_metric() -> None:
    assert metric_of("kraftpy_fsync_seconds_bucket") == "kraftpy_fsync_seconds"
    assert metric_of("kraftpy_fsync_seconds_count") == "kraftpy_fsync_seconds"
    assert metric_of("kraftpy_connections_count") == "kraftpy_connections_count"
    assert metric_of("kafka_consumergroup_lag_sum") == "kafka_consumergroup_lag_sum"


def test_variables_are_replaced() -> None:
    values = {"job": "k", "__rate_interval": "10s"}
    assert substituted('rate(a{job="$job"}[${__rate_interval}])', values) == (
        'rate(a{job="k"}[10s])'
    )
    with pytest.raises(KeyError):
        substituted("$unknown", values)

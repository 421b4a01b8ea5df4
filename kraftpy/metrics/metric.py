"""What the catalogue says of a metric: its name, type, help, labels, unit and family."""

from __future__ import annotations

from enum import Enum

from kraftpy.frozen import NamedTuple


class Kind(Enum):
    """The type, as Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(Enum):
    """Who else uses these names."""

    NATIVE = "kraftpy"
    KAFKA_EXPORTER = "kafka_exporter"
    JMX = "jmx"
    PROBE = "probe"
    KMINION = "kminion"

    @property
    def of_node(self) -> bool:
        """Whether a node serves it, and not the probe."""
        return self not in (Family.PROBE, Family.KMINION)


class Metric(NamedTuple):
    """One metric. A counter's name ends in `_total`; `buckets` are a histogram's upper bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    family: Family = Family.NATIVE
    per_partition: bool = False
    buckets: tuple[float, ...] = ()


def counter(name: str, help_: str, *labels: str, unit: str = "") -> Metric:
    """A native metric that only grows."""
    return Metric(name, Kind.COUNTER, help_, labels, unit)


def histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    """A native metric of how long something takes."""
    return Metric(name, Kind.HISTOGRAM, help_, labels, "seconds", buckets=buckets)


def gauge(name: str, help_: str, *labels: str, unit: str = "") -> Metric:
    """A native metric that goes up and down."""
    return Metric(name, Kind.GAUGE, help_, labels, unit)

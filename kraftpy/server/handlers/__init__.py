"""One module per API family; each registers its handlers with `dispatch.handles` when imported."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "fetch",
    "groups",
    "metadata",
    "offsets",
    "partitions",
    "produce",
    "producer_ids",
    "quorum",
    "security",
    "topic_partitions",
    "topics",
)


def load() -> None:
    """Imports every family, so that all handlers are registered."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")

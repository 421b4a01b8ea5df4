"""What callers give by mistake where something else is meant, refused where they gave it.

Rules:

* The error is a `TypeError` that says what is wrong and what to give.
* One str isn't a list of its characters, and no address is a `Cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from kraftpy.client.cluster import Cluster
from kraftpy.client.offsets import Partition


def checked_cluster(cluster: Cluster, whose: str) -> Cluster:
    """The cluster itself; refuses the addresses of brokers, which a `Cluster` takes."""
    given: object = cluster
    if isinstance(given, str | list | tuple):
        raise TypeError(
            f"{whose} takes a Cluster, not {cluster!r}: async with Cluster({cluster!r}) as "
            f"cluster, and {whose}(cluster, ...) in it"
        )
    return cluster


def check_names(names: Iterable[str] | None, what: str) -> None:
    """Refuses one str in place of a list of them."""
    if isinstance(names, str):
        raise TypeError(f"{what} takes a list of topics, not one str: [{names!r}]")


def check_partitions(partitions: Iterable[Partition], what: str) -> None:
    """Refuses what isn't a topic and a number each."""
    given: Iterable[Any] = [partitions] if isinstance(partitions, str) else partitions
    for each in given:
        is_one = isinstance(each, tuple) and len(each) == 2
        if not (is_one and isinstance(each[0], str) and isinstance(each[1], SupportsIndex)):
            raise TypeError(
                f"{what} takes a list of partitions, each a topic and a number, as "
                f'[("orders", 0)], not {each!r}'
            )


def check_configs(configs: Mapping[str, str] | None, whose: str) -> None:
    """Refuses values that aren't str, which is how Kafka has them all."""
    if not isinstance(configs, Mapping | None):
        raise TypeError(
            f"{whose}: configurations are a dict of names and values, not {type(configs).__name__}"
        )
    for name, value in (configs or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"{whose}: {name!r} has the value {value!r}, but names and values of "
                f"configurations are str{_as_text(value)}"
            )


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return f': give "{str(value).lower()}"'
    return f': give "{value}"' if isinstance(value, int | float) else ""

"""The topic settings that name the replicas whose replication is throttled (KIP-73).

Rules: `*` is every replica of the topic; else the text lists replicas as PARTITION:BROKER. It may
be as long as a topic with the most partitions needs, which is longer than other values.
"""

from __future__ import annotations

import re

from kraftpy.core.config.kinds import ConfigType, Kind, split_list
from kraftpy.frozen import dataclass

LENGTH_MAX = 256 * 1024
_REPLICA = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """A set of replicas of one topic; `everything` stands for all there are."""

    replicas: frozenset[tuple[int, int]]
    everything: bool = False

    def includes(self, partition: int, broker_id: int) -> bool:
        """Whether the replica of `partition` on this broker is one of them."""
        return self.everything or (partition, broker_id) in self.replicas


def throttled_replicas() -> Kind:
    """A list of PARTITION:BROKER, or `*`; read as `ThrottledReplicas`."""
    return Kind(
        ConfigType.LIST,
        "a list of PARTITION:BROKER, comma-separated, or *",
        _parse,
        _render,
        length_max=LENGTH_MAX,
    )


def _parse(value: str) -> ThrottledReplicas:
    parts = split_list(value)
    if parts == ["*"]:
        return ThrottledReplicas(frozenset(), everything=True)
    replicas = set()
    for part in parts:
        found = _REPLICA.fullmatch(part)
        if found is None:
            raise ValueError(value)
        replicas.add((int(found[1]), int(found[2])))
    return ThrottledReplicas(frozenset(replicas))


def _render(value: ThrottledReplicas) -> str:
    if value.everything:
        return "*"
    return ",".join(f"{partition}:{broker_id}" for partition, broker_id in sorted(value.replicas))

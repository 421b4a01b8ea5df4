"""What a replica needs of its broker; `replicas.ReplicaManager` is that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from kraftpy.server.replication.partition import Partition
    from kraftpy.storage.flusher import Flusher


class PartitionHost(Protocol):
    """What a replica needs of its broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def node_id(self) -> int: ...
    @property
    def flusher(self) -> Flusher: ...
    @property
    def active_brokers(self) -> Mapping[int, int]:
        """Epochs of the brokers that may be in an ISR, by id."""

    @property
    def lag_max_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...
    def isr_may_grow(self, partition: Partition) -> None:
        """A follower has caught up: propose it soon."""

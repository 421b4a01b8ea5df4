"""What a replica needs of its broker, and tells those who follow it.

`replicas.ReplicaManager` is the one, `follower_sessions.FollowedPartition` the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from kraftpy.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

    from kraftpy.storage.flusher import Flusher

P_contra = TypeVar("P_contra", contravariant=True)


class PartitionHost(Protocol[P_contra]):
    """What a replica needs of its broker; `P_contra` are replicas."""

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
    def isr_may_grow(self, partition: P_contra) -> None:
        """A follower has caught up: propose it soon."""


class Follower(Protocol):
    """Who fetches from a replica that leads."""

    @property
    def replica_id(self) -> int: ...
    @property
    def caught_up_ms(self) -> int:
        """When it last asked while it had everything."""

    def appended(self) -> None:
        """There may be records for it now."""

    def moved(self, *, at_once: bool = False) -> None:
        """A watermark has moved; it learns of that with its next answer, or `at_once`."""

    def failed(self, error: ErrorCode) -> None:
        """The replica doesn't lead any more."""

"""Options of producers and consumers as types, so that a checker knows names and values.

Their names and defaults are those of the classes; what is left out there is left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from kraftpy.client.assignor import Assignor
from kraftpy.client.group import GroupTimes
from kraftpy.client.interceptors import ProducerInterceptor

if TYPE_CHECKING:
    from kraftpy.client.share_group.acknowledgements import AcknowledgementCallback

Partitioner = Callable[[str, bytes | None, int], int | None]
"""Topic, serialized key and number of partitions to a partition; None leaves it to the default."""


class SendingOptions(TypedDict, total=False):
    """What every producer takes."""

    compression: str
    linger_ms: int
    batch_size_bytes: int
    buffer_size_bytes: int
    delivery_timeout_ms: int
    auto_create: bool
    partitioner: Partitioner | None
    interceptors: Sequence[ProducerInterceptor[Any, Any]]


class ProducerOptions(SendingOptions, total=False):
    """What `Producer` takes beside serializers."""

    acks: int
    idempotent: bool | None
    stop_on_failure: bool


class TransactionalOptions(SendingOptions, total=False):
    """What `TransactionalProducer` takes beside serializers."""

    transaction_timeout_ms: int
    max_block_ms: int


class ConsumerOptions(TypedDict, total=False):
    """What `Consumer` takes beside deserializers."""

    group_id: str | None
    group_instance_id: str | None
    assignors: Sequence[str | Assignor]
    times: GroupTimes | None
    auto_offset_reset: str
    isolation_level: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    metadata_max_age_ms: int
    allow_individual_commit: bool
    max_num_ranges_to_commit: int
    explicit_done: bool
    share_host: str


class ShareConsumerOptions(TypedDict, total=False):
    """What `ShareConsumer` takes beside its group and deserializers."""

    share_acknowledgement_mode: str
    share_acquire_mode: str
    acknowledgement_callback: AcknowledgementCallback | None
    max_poll_records: int
    max_poll_interval_ms: int
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int

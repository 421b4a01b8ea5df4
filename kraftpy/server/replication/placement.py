"""Which replicas the metadata has in this broker's folders: what a start may set aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kraftpy.storage.files import StorageError

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState
    from kraftpy.storage.manager import LogManager


def check_metadata_is_there(
    metadata: MetadataState, logs: LogManager, data_dirs: Sequence[str]
) -> None:
    """Raises StorageError if there are partitions of which no metadata can know."""
    if metadata.cluster_id is None and len(logs):
        raise StorageError(
            f"the metadata log is empty, but there are {len(logs)} partitions in "
            f"{', '.join(data_dirs)}: restore the metadata folder (metadata.log.dir), or set "
            "log.dirs to an empty folder to begin a new cluster"
        )


class MetadataPlacement:
    """`storage.placement.Placement` as the metadata has it before this life registers."""

    def __init__(self, metadata: MetadataState, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Of the topic that has this replica here, None if none has."""
        known = self._metadata.topics.get(topic)
        state = None if known is None else known.partitions.get(partition)
        if known is None or state is None or self._node_id not in state.replicas:
            return None
        return known.id

    def is_elsewhere(self, topic: str, partition: int) -> bool:
        """Whether others have all that was acknowledged, and do without this replica already.

        One whose former life still is let in might be elected, or get in sync, before this one
        registers. The log of a deleted topic, whose records are kept for a while all the same
        (`LogManager.set_aside_strays`), may be damaged too.
        """
        if self._metadata.cluster_id is None:
            return False
        own = self._metadata.brokers.get(self._node_id)
        if own is not None and not own.fenced:
            return False
        known = self._metadata.topics.get(topic)
        if known is None:
            return True
        state = known.partitions.get(partition)
        return state is not None and bool(state.isr) and self._node_id not in state.isr

"""What the metadata says of the replicas in a broker's folders, as far as a start has to know."""

from __future__ import annotations

from typing import Protocol

from kraftpy.storage import checkpoints
from kraftpy.storage.files import StorageError
from kraftpy.storage.log import Log


class Placement(Protocol):
    """What the metadata says of the replicas in this broker's folders."""

    def topic_id(self, topic: str, partition: int) -> bytes | None:
        """Of the topic that has this replica here, None if none has."""

    def is_elsewhere(self, topic: str, partition: int) -> bool:
        """Whether the partition is in sync elsewhere, and its replica here is not counted on."""


class Nowhere:
    """The placement where nothing is known."""

    def topic_id(self, _topic: str, _partition: int) -> bytes | None:
        return None

    def is_elsewhere(self, _topic: str, _partition: int) -> bool:
        return False


def check_topic(log: Log, placement: Placement) -> None:
    """Raises StorageError if the log's topic isn't the one in the metadata, and may be.

    A checksum shows that it is another one, deleted and made anew with the name while this broker
    was down: that log is a stray.
    """
    wanted = placement.topic_id(*log.key)
    if wanted is None or log.topic_id in (None, wanted) or log.topic_id_checked:
        return
    assert log.topic_id is not None
    path = log.folder / checkpoints.PARTITION_METADATA_FILE
    raise StorageError(
        f"{path} has the topic id {checkpoints.uuid_to_text(log.topic_id)}, but the topic that has "
        f"{log} here is {checkpoints.uuid_to_text(wanted)}. Either the file is damaged: remove it "
        "and start again, the metadata has the id; or the topic was deleted and made anew while "
        f"this broker was down: move {log.folder} away"
    )

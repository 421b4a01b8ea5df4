"""Topics that the broker makes for itself when somebody first needs them (`__consumer_offsets`).

Rule: one proposal at a time, shared by all who wait for the topic. A failure is what the waiting
clients are told, as COORDINATOR_NOT_AVAILABLE, which makes every client try again. So is the end of
this broker.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.core.metadata.commands import CreateTopics, NewTopic
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.cluster.proposals import Proposer, new_topic_id
from kraftpy.server.network.shared_tasks import await_shared

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState

log = logging.getLogger(__name__)

_CREATE_TIMEOUT_MS = 15_000


class TopicHost(Protocol):
    """What is needed of the broker."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def metadata(self) -> MetadataState: ...
    @property
    def controller(self) -> Proposer: ...


class InternalTopic:
    """One such topic; `setting` names the replication setting in errors.

    The twin of another one has neither partitions nor a replication factor of its own.
    """

    def __init__(
        self,
        host: TopicHost,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: dict[str, str],
        setting: str,
        twin_of: str | None = None,
    ) -> None:
        self.name = name
        self._host = host
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._configs = configs
        self._twin_of = twin_of
        self._setting = setting
        self._creating: asyncio.Task[None] | None = None
        self._last_failure: str | None = None
        self._stopped = False

    async def ensure(self) -> None:
        """Returns when the topic exists; the first caller decides on its shape.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE.
        """
        if self.name in self._host.metadata.topics:
            return
        if self._stopped:
            raise _stops()
        if self._creating is None:
            self._creating = self._host.loop.create_task(self._create())
            self._creating.add_done_callback(self._created)
        await await_shared(self._creating, _stops())

    async def stop(self) -> None:
        """Gives up on a creation under way, and on any other."""
        self._stopped = True
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)

    async def _create(self) -> None:
        topic = NewTopic(
            self.name,
            new_topic_id(),
            self._partitions,
            self._replication_factor,
            configs=self._configs,
            twin_of=self._twin_of,
        )
        command = CreateTopics((topic,), seed=secrets.randbits(31))
        try:
            _, result = await self._host.controller.propose(command, _CREATE_TIMEOUT_MS)
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        # Another broker may have created it in the same moment, which is as good.
        if self.name not in self._host.metadata.topics:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{self.name} can't be created with {self._setting}={self._replication_factor}: "
                f"{_why_not_created(result)}",
            )

    def _created(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        error = None if task.cancelled() else task.exception()
        failure = None if error is None else str(error)
        # Clients try again many times a second; a reason that is known needs no further line.
        if failure is not None and failure != self._last_failure:
            log.error("could not create %s: %s", self.name, failure)
        self._last_failure = failure


def _stops() -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker stops")


def _why_not_created(result: Any) -> str:
    """What the answer to `create_topics` says went wrong."""
    for topic in result.value.get("topics", ()):
        if topic["error"]:
            return topic["message"] or str(ErrorCode(topic["error"]).name)
    return result.message or str(result.error.name)

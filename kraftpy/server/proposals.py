"""What handlers ask of the quorum, in Kafka's error terms: mostly, to change the metadata.

Rules: when `propose` returns, the command is committed and this broker's own copy of the metadata
has it, so that whatever the client asks next sees its change. An unknown outcome is
REQUEST_TIMED_OUT, never a success and never a guess (metadata_and_replication.md). Settings are
judged here, before anything is proposed: see `kraftpy.core.metadata.judgement`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.judgement import judge
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.client import ControllerClient, ControllerUnavailable, ProposalTimeout
from kraftpy.quorum.messages import QuorumDescription
from kraftpy.quorum.port import CommandResult

TIMEOUT_MAX_MS = 60_000


def answers_by_partition(result: CommandResult) -> dict[tuple[bytes, int], ErrorCode]:
    """What the rules said to each partition, by (topic id, index), of a command about many."""
    return {
        (topic["topic_id"], answer["index"]): ErrorCode(answer["error"])
        for topic in result.value["topics"]
        for answer in topic["partitions"]
    }


class Proposals:
    """The controller as handlers see it."""

    def __init__(self, client: ControllerClient, metadata: Callable[[], MetadataState]) -> None:
        self._client = client
        self._metadata = metadata

    async def propose(self, command: dict[str, Any], timeout_ms: int) -> tuple[int, CommandResult]:
        """(index, result) of the committed and locally applied command.

        A result's error says that the rules refused it. The index is -1 if nothing was left to
        commit, because the settings of all items were refused. Raises KafkaError: REQUEST_TIMED_OUT
        when the outcome is unknown, or the news of it late; NOT_CONTROLLER when no controller could
        be reached in time, so nothing was changed; INVALID_REQUEST for a command that is too large.
        """
        judged = judge(self._metadata(), command)
        if judged.command is None:
            return -1, CommandResult(ErrorCode.NONE, None, dict(judged.answers({})))
        index, result = await self._propose(judged.command, timeout_ms)
        if result.error is ErrorCode.NONE:
            result = result._replace(value=dict(judged.answers(result.value)))
        return index, result

    async def _propose(self, command: dict[str, Any], timeout_ms: int) -> tuple[int, CommandResult]:
        timeout_ms = max(1, min(timeout_ms, TIMEOUT_MAX_MS))
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            index, result = await self._client.propose(command, timeout_ms)
        except ProposalTimeout as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        except ControllerUnavailable as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        if index >= 0:
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            try:
                await self._client.wait_applied(index, left_ms)
            except ControllerUnavailable as error:
                # It is committed: nobody may take it for a change that was not made.
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        return index, result

    async def describe_quorum(self, timeout_ms: int) -> QuorumDescription:
        """The quorum as its leader sees it now. Raises KafkaError(NOT_CONTROLLER)."""
        try:
            return await self._client.describe_quorum(timeout_ms)
        except ControllerUnavailable as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error

    async def transfer_leadership(self, voter_id: int, timeout_ms: int) -> None:
        """Has the quorum's leader hand its lead to another voter; returns once that one leads.

        Raises KafkaError: REQUEST_TIMED_OUT if it doesn't lead in time, INVALID_REQUEST if the
        leader refuses.
        """
        try:
            await self._client.transfer_leadership(voter_id, timeout_ms)
        except ControllerUnavailable as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error

    @property
    def leader_id(self) -> int | None:
        """The node whose controller leads the quorum, as far as this broker knows."""
        return self._client.leader_id

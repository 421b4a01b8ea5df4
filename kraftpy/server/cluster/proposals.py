"""What handlers ask of the quorum, in Kafka's error terms: mostly, to change the metadata.

Rules: when `propose` returns, the command is committed and this broker's own copy of the metadata
has it, so that whatever the client asks next sees its change. An unknown outcome is
REQUEST_TIMED_OUT, never a success and never a guess (docs/rules.md, rule 51). Settings are
judged here, before anything is proposed: see `kraftpy.core.metadata.judgement`. A command is
applied in one go on every broker's event loop, so a list goes in commands of WEIGHT_MAX at most.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol, TypeVar

from kraftpy.batching import bounded
from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.commands import Barrier, Command, encode, level_of
from kraftpy.core.metadata.judgement import judge
from kraftpy.core.metadata.topic_commands import check_batch
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.client import ControllerClient, ControllerUnavailable, ProposalTimeout
from kraftpy.quorum.messages import QuorumDescription
from kraftpy.quorum.mutations import Charge
from kraftpy.quorum.port import CommandResult
from kraftpy.server.network.long_answers import Pace

T = TypeVar("T")

Make = Callable[[tuple[T, ...], int], Command]
"""A command on these items, before which so many have gone; an item's seed is one more than that
of the item before it."""

TIMEOUT_MAX_MS = 60_000

WEIGHT_MAX = 1_000
"""What the items of one command weigh together; one that weighs more goes alone."""

# A new topic is as much work as so many partitions more: its settings are resolved.
_TOPIC_WEIGHT = 2


def new_topic_id() -> bytes:
    """A random topic id; Kafka's reserved ones have all but their last bits zero."""
    return uuid.uuid4().bytes


def answers_by_partition(result: CommandResult) -> dict[tuple[bytes, int], ErrorCode]:
    """What the rules said to each partition, by (topic id, index), of a command about many."""
    return {
        (topic["topic_id"], answer["index"]): ErrorCode(answer["error"])
        for topic in result.value["topics"]
        for answer in topic["partitions"]
    }


def batches(weighed: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Those that follow each other and weigh WEIGHT_MAX together, or are alone; of (it, weight)."""
    return bounded(weighed, WEIGHT_MAX)


class Proposer(Protocol):
    """The controller, as those see it who only propose; `Proposals` is one."""

    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, Any]:
        """(index, result) once the command is applied here; raises KafkaError."""


class Proposals:
    """The controller as handlers see it."""

    def __init__(self, client: ControllerClient, metadata: Callable[[], MetadataState]) -> None:
        self._client = client
        self._metadata = metadata

    async def propose(
        self, command: Command, timeout_ms: int, charge: Charge | None = None
    ) -> tuple[int, CommandResult]:
        """(index, result) of the committed and locally applied command; `charge`: for whom.

        A result's error says that the rules refused it. The index is -1 if nothing was left to
        commit, because the settings of all items were refused. Raises KafkaError: REQUEST_TIMED_OUT
        when the outcome is unknown, or the news of it late; NOT_CONTROLLER when no controller could
        be reached in time, so nothing was changed; INVALID_REQUEST for a command that is too large;
        UNSUPPORTED_VERSION for one that not all nodes know yet.
        """
        level = self._metadata().level
        if level_of(command) > level:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"this takes metadata level {level_of(command)}, and the cluster has {level}: "
                "upgrade all nodes, then `kraftpy cluster raise-level`",
            )
        judged = judge(self._metadata(), command)
        if judged.command is None:
            return -1, CommandResult(ErrorCode.NONE, None, dict(judged.answers({})))
        index, result = await self._propose(judged.command, timeout_ms, charge)
        if result.error is ErrorCode.NONE:
            result = result._replace(value=dict(judged.answers(result.value)))
        return index, result

    async def _propose(
        self, command: Command, timeout_ms: int, charge: Charge | None
    ) -> tuple[int, CommandResult]:
        timeout_ms = max(1, min(timeout_ms, TIMEOUT_MAX_MS))
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            index, result = await self._client.propose(encode(command), timeout_ms, charge)
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


class _Controller(Protocol):
    async def propose(self, command: Command, timeout_ms: int) -> tuple[int, CommandResult]:
        """As `Proposals.propose`."""


async def catch_up(controller: _Controller, timeout_ms: int) -> int:
    """Returns when this broker's metadata has all that was committed before; the time left in ms.

    Raises KafkaError as `Proposals.propose`, or what keeps commands out of the log.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    _, result = await controller.propose(Barrier(), timeout_ms)
    if result.error is not ErrorCode.NONE:
        raise KafkaError(result.error, result.message)
    return max(1, int((deadline_s - time.monotonic()) * 1000))


async def propose_batches(
    controller: _Controller,
    make: Make[T],
    timeout_ms: int,
    weighed: Iterable[tuple[T, int]],
) -> AsyncIterator[list[Mapping[str, Any]]]:
    """Proposes the commands that `make` makes of these items, a batch each; the answers to each.

    `weighed` has each item with about how many partitions or settings it changes, and is gone
    through as they are proposed. Each answer has `error` and `message`, or what the command says.
    Where there is no answer to a batch as a whole, each of its items gets the reason; if that is
    because the quorum can't be asked or the time is over, those behind it get it too and aren't
    proposed.
    """
    deadline_s = time.monotonic() + min(timeout_ms, TIMEOUT_MAX_MS) / 1000
    over: KafkaError | None = None
    count = 0
    pace = Pace()
    for items in batches(weighed):
        try:
            if count:
                await pace.keep()
                timeout_ms = _left_ms(deadline_s)
            if over is not None:
                raise over
            _, result = await controller.propose(make(tuple(items), count), timeout_ms)
            if result.error is ErrorCode.NONE:
                (answers,) = result.value.values()
                yield answers
            else:
                yield [_answer_to_item(KafkaError(result.error, result.message))] * len(items)
        except KafkaError as error:
            over = error
            yield [_answer_to_item(error)] * len(items)
        count += len(items)


async def propose_items(
    controller: _Controller,
    make: Make[T],
    items: Iterable[T],
    timeout_ms: int,
    weights: Iterable[int] | None = None,
    *,
    alone: bool = False,
) -> list[Mapping[str, Any]]:
    """The same of these items, each of weight 1 by default; all answers.

    `alone`: each in a command of its own.
    """
    if alone:
        weights = repeat(WEIGHT_MAX)
    weighed = zip(items, repeat(1) if weights is None else weights, strict=False)
    answers: list[Mapping[str, Any]] = []
    async for some in propose_batches(controller, make, timeout_ms, weighed):
        answers += some
    return answers


async def propose_growth(
    controller: _Controller,
    make: Make[T],
    topics: Iterable[T],
    growths: Sequence[int],
    timeout_ms: int,
    *,
    alone: bool = False,
) -> list[Mapping[str, Any]]:
    """As `propose_items` of topics; `growths`: how many partitions each of them adds.

    What one request may create isn't more because it becomes several commands.
    """
    try:
        check_batch(sum(growths))
    except KafkaError as error:
        return [_answer_to_item(error)] * len(growths)
    weights = (_TOPIC_WEIGHT + max(0, each) for each in growths)
    return await propose_items(controller, make, topics, timeout_ms, weights, alone=alone)


def _answer_to_item(error: KafkaError) -> Mapping[str, Any]:
    """The answer to an item for which there is no other."""
    return {"error": int(error.code), "message": error.message}


def _left_ms(deadline_s: float) -> int:
    left_ms = int((deadline_s - time.monotonic()) * 1000)
    if left_ms <= 0:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            "the request's time is over, and this part of it wasn't begun: ask for it again, with "
            "fewer at a time or a longer timeout",
        )
    return left_ms

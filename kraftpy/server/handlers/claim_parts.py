"""Commits of very many claims, some at a time, with others having the loop in between.

Rules:

* Each claim is true by itself, so what claims more than is taken at once is made several commits,
  each behind the answer to the one before.
* All is read before anything is claimed: what no claims can be is INVALID_REQUEST, and so it is in
  a commit that is to be whole or not at all, which can't be cut.
* A partition is answered with the first error of its parts, behind which nothing more of it is
  claimed, and with the last stable offset. It's too old if all of its parts are.
* Who is refused all of a part is refused all: claims may be made again.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, cast

from kraftpy.core.groups.commits import commit_error_response
from kraftpy.core.groups.individual.requests import IMPOSSIBLE, Cutter, Parts, has_claims
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import ALL_OR_NONE_TAG, YES
from kraftpy.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from kraftpy.server.coordination.runtime import answer_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, in_slices

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

TOGETHER_MAX = 1_000
"""So many ranges are claimed at once."""

Commit = Callable[[Any], Awaitable[Any]]
Refuse = Callable[[Any, ErrorCode], Any]
"""The answer to a request of which all is refused."""

_Place = tuple[str, bytes, int]


async def commit_claims(
    broker: Broker, ctx: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """An OffsetCommit of very many claims."""

    async def commit(part: OffsetCommitRequest) -> OffsetCommitResponse:
        return await answer_of(broker.groups.commit_offsets(ctx.api_version, part))

    try:
        found = await commit_in_parts(request, commit, commit_error_response)
    except KafkaError as error:
        return commit_error_response(request, error.code)
    return cast("OffsetCommitResponse", found)


async def commit_in_parts(request: Any, commit: Commit, refuse: Refuse) -> Any:
    """The answer to an OffsetCommit or a TxnOffsetCommit.

    Raises KafkaError as `commit` does, which gives the answer to a part.
    """
    parts = await in_slices(_cut(request))
    answers: dict[_Place, Any] = {}
    rest = copy.copy(request)
    rest.topics = []
    for topic in request.topics:
        left = [each for each in topic.partitions if id(each) not in parts]
        if left:
            rest.topics.append(_with(topic, left))
    if rest.topics:
        answers |= _answered(await commit(rest))
    pace = Pace()
    for topic in request.topics:
        for partition in topic.partitions:
            for tags in parts.get(id(partition), ()):
                await pace.keep()
                part, its = copy.copy(request), copy.copy(partition)
                its._tags = tags
                part.topics = [_with(topic, [its])]
                if not _takes(answers, _answered(await commit(part))):
                    break
    response = refuse(request, ErrorCode.INVALID_REQUEST)
    for topic in response.topics:
        topic.partitions = [
            answers.get(_place(topic, partition), partition) for partition in topic.partitions
        ]
    return response


def _cut(request: Any) -> Generator[None, None, dict[int, Parts]]:
    """The parts of each partition with claims."""
    parts: dict[int, Parts] = {}
    cutter = Cutter(TOGETHER_MAX)
    is_whole = (request._tags or {}).get(ALL_OR_NONE_TAG) == YES
    for topic in request.topics:
        for partition in topic.partitions:
            if has_claims(partition._tags):
                cut = [IMPOSSIBLE] if is_whole else (yield from cutter.cut(partition._tags))
                parts[id(partition)] = cut
    return parts


def _with(topic: Any, partitions: list[Any]) -> Any:
    other = copy.copy(topic)
    other.partitions = partitions
    return other


def _place(topic: Any, partition: Any) -> _Place:
    return topic.name, getattr(topic, "topic_id", b""), partition.partition_index


def _answered(response: Any) -> dict[_Place, Any]:
    return {
        _place(topic, partition): partition
        for topic in response.topics
        for partition in topic.partitions
    }


def _takes(answers: dict[_Place, Any], part: dict[_Place, Any]) -> bool:
    """Notes the answer to a part of a partition; whether the next one is to be made."""
    ((place, answer),) = part.items()
    too_old = answer.error_code == ErrorCode.INDIVIDUAL_COMMIT_TOO_OLD
    before = answers.get(place)
    if too_old and before is not None:
        answer.error_code = before.error_code
    answers[place] = answer
    return too_old or ErrorCode(answer.error_code) is ErrorCode.NONE

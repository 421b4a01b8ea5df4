"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments.

The controller's state machine decides (`kraftpy.core.metadata`); here a request becomes commands,
and the answers become a response. Rules:

* Every partition is answered by itself, also with what is wrong with the whole request (its time is
  over, there is no controller), which stands at the top as well where the version has a place: some
  clients look at the one, some at the other. What is wrong with a part of it stands with the
  partitions only. One that is named twice in a request is refused with INVALID_REQUEST and nothing
  is done to it.
* A request that names no partitions elects for all of them, and the answer has only those in which
  an election was needed (KIP-183). Those are found here, once this broker knows all that was
  committed before: a command on all of a cluster's partitions would hold up every broker.
* The answer comes when the change is committed. A reassignment has then begun (KIP-455); it
  completes by itself when the new replicas are in sync, and ListPartitionReassignments shows those
  that are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kraftpy.core.metadata import PartitionState
from kraftpy.core.metadata.commands import (
    AlterReassignments,
    Elections,
    ElectLeaders,
    Reassignment,
    Reassignments,
)
from kraftpy.core.metadata.leader_commands import needs_election
from kraftpy.core.metadata.topic_commands import NAME_LENGTH_MAX, topic_name_error
from kraftpy.core.security.acls import Operation
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kraftpy.server.cluster.proposals import Make, batches, catch_up, propose_batches
from kraftpy.server.handlers.quorum import elect_controller, names_a_voter
from kraftpy.server.handlers.registry import handles
from kraftpy.server.handlers.rights import controller_of
from kraftpy.server.network.dispatch import RequestContext
from kraftpy.server.network.long_answers import Pace, counted, in_parts

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

PREFERRED, UNCLEAN = 0, 1
# What isn't told of an election on all partitions: somebody else has elected or deleted it by now.
_NOT_NEEDED = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

Refusal = tuple[ErrorCode, str | None]
Name = tuple[str, int]
_T = TypeVar("_T")
_Item = TypeVar("_Item")

ElectedTopic = ElectLeadersResponse.ReplicaElectionResult
ReassignedTopic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
OngoingTopic = ListPartitionReassignmentsResponse.OngoingTopicReassignment


@handles(ApiKey.ELECT_LEADERS, long=True, cluster=Operation.ALTER)
async def elect_leaders(
    broker: Broker, ctx: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Gives partitions their preferred leader, or in an unclean election any leader at all."""
    if names_a_voter(request):
        return await elect_controller(broker, request)
    names: list[Name] = []
    async for some in in_parts(
        (topic.topic, index)
        for topic in request.topic_partitions or ()
        for index in topic.partitions
    ):
        names += some
    response = ElectLeadersResponse()
    try:
        answers = await _elect(broker, ctx, request, names)
    except KafkaError as error:
        response.error_code = error.code
        answers = dict.fromkeys(names, (error.code, error.message))
    response.replica_election_results = await _elected(answers)
    return response


async def _elect(
    broker: Broker, ctx: RequestContext, request: ElectLeadersRequest, names: Sequence[Name]
) -> dict[Name, Refusal]:
    """The answer to each partition. Raises KafkaError when there is none to the request."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"there is no election type {request.election_type}: 0 is preferred, 1 unclean",
        )

    def make(some: tuple[Elections, ...], _: int) -> ElectLeaders:
        return ElectLeaders(request.election_type, some)

    if request.topic_partitions is None:
        left_ms = await catch_up(broker.controller, request.timeout_ms)
        needy = await _needy(broker, request.election_type)
        answers = await _propose(broker, ctx, make, needy, _elections, left_ms)
        return {name: each for name, each in answers.items() if each[0] not in _NOT_NEEDED}
    answers = await _refused(names)
    wanted: dict[Name, None] = {}
    async for some_names in in_parts(names):
        wanted.update(dict.fromkeys([name for name in some_names if name not in answers]))
    return answers | await _propose(broker, ctx, make, wanted, _elections, request.timeout_ms)


async def _needy(broker: Broker, election_type: int) -> dict[Name, None]:
    """The partitions that need such an election, as far as is known here."""
    found: dict[Name, None] = {}
    pace = Pace()
    for topic in list(broker.metadata.topics.values()):
        for index, partition in topic.partitions.items():
            if needs_election(partition, election_type):
                found[topic.name, index] = None
        await pace.keep()
    return found


def _elections(topic: str, partitions: list[tuple[int, None]]) -> Elections:
    return Elections(topic, tuple([index for index, _ in partitions]))


async def _elected(answers: Mapping[Name, Refusal]) -> list[ElectedTopic]:
    return elements(list((await _by_topic(answers.items())).items()), _elected_topic)


def _elected_topic(answered: tuple[str, list[tuple[int, Refusal]]]) -> ElectedTopic:
    topic, partitions = answered
    return ElectedTopic(
        topic,
        elements(partitions, lambda each: ElectLeadersResponse.PartitionResult(each[0], *each[1])),
    )


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, long=True, cluster=Operation.ALTER)
async def alter_partition_reassignments(
    broker: Broker, ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begins to move partitions to other replicas, or ends that where the replicas are null."""
    answers = await _refused(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    wanted: dict[Name, list[int] | None] = {}
    pace = Pace()
    for topic in request.topics:
        for partition in topic.partitions:
            await pace.keep()
            name = topic.name, partition.partition_index
            if name not in answers:
                wanted[name] = partition.replicas
    keep = not request.allow_replication_factor_change
    failure: KafkaError | None = None
    try:
        answers |= await _propose(
            broker,
            ctx,
            lambda some, _: AlterReassignments(some, keep),
            wanted,
            _reassignments,
            request.timeout_ms,
            _replica_count,
        )
    except KafkaError as error:
        failure = error
        answers |= dict.fromkeys(wanted, (error.code, error.message))
    return AlterPartitionReassignmentsResponse(
        error_code=failure.code if failure else ErrorCode.NONE,
        error_message=failure.message if failure else None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=elements(list((await _by_topic(answers.items())).items()), _reassigned_topic),
    )


def _reassignments(topic: str, partitions: list[tuple[int, list[int] | None]]) -> Reassignments:
    moved = [
        Reassignment(index, None if replicas is None else tuple(replicas))
        for index, replicas in partitions
    ]
    return Reassignments(topic, tuple(moved))


def _replica_count(replicas: list[int] | None) -> int:
    return max(1, len(replicas or ()))


def _reassigned_topic(answered: tuple[str, list[tuple[int, Refusal]]]) -> ReassignedTopic:
    topic, partitions = answered
    kinds = AlterPartitionReassignmentsResponse
    return ReassignedTopic(
        topic,
        elements(partitions, lambda each: kinds.ReassignablePartitionResponse(each[0], *each[1])),
    )


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, long=True, cluster=Operation.DESCRIBE)
async def list_partition_reassignments(
    broker: Broker, ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The partitions that are being moved, of those asked for or of all."""
    known = broker.metadata.topics
    asked: Iterable[Name]
    if request.topics is None:
        asked = [(topic.name, index) for topic in known.values() for index in topic.partitions]
    else:
        asked = (
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
        )
    ongoing: dict[Name, PartitionState] = {}
    pace = Pace()
    for name, index in asked:
        await pace.keep()
        partition = known[name].partitions.get(index) if name in known else None
        if partition is not None and (partition.adding or partition.removing):
            ongoing[name, index] = partition
    return ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopic(
                topic,
                [
                    ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                        index, list(state.replicas), list(state.adding), list(state.removing)
                    )
                    for index, state in partitions
                ],
            )
            for topic, partitions in (await _by_topic(ongoing.items())).items()
        ]
    )


async def _propose(
    broker: Broker,
    ctx: RequestContext,
    make: Make[_Item],
    wanted: Mapping[Name, _T],
    item: Callable[[str, list[tuple[int, _T]]], _Item],
    timeout_ms: int,
    weigh: Callable[[_T], int] = lambda _: 1,
) -> dict[Name, Refusal]:
    """The answer to each wanted partition. Raises KafkaError when there is one reason for all.

    `item` is what the command that `make` makes has of a topic with some of its partitions. Few of
    them are there at a time: what has been answered is let go of.
    """
    proposed: deque[tuple[str, list[int]]] = deque()

    def weighed() -> Iterator[tuple[_Item, int]]:
        for topic, partitions in topics.items():
            for some in batches((each, weigh(each[1])) for each in partitions):
                proposed.append((topic, [index for index, _ in some]))
                yield item(topic, some), sum(weigh(value) for _, value in some)

    topics = await _by_topic(wanted.items())
    answers: dict[Name, Refusal] = {}
    failure: Refusal | None = None
    answered = False
    pace = Pace()
    async for results in propose_batches(controller_of(broker, ctx), make, timeout_ms, weighed()):
        for result in results:
            name, indexes = proposed.popleft()
            if "partitions" in result:
                answered = True
                found = result["partitions"]
            else:
                failure = failure or (ErrorCode(result["error"]), result["message"])
                found = [{**result, "index": index} for index in indexes]
            for each in found:
                answers[name, each["index"]] = ErrorCode(each["error"]), each["message"]
            await pace.keep()
    if failure is not None and not answered:
        raise KafkaError(*failure)
    return answers


async def _refused(names: Iterable[Name]) -> dict[Name, Refusal]:
    """What is wrong with partitions before one looks at them."""
    once, twice = await counted(names)
    refused: dict[Name, Refusal] = {}
    pace = Pace()
    for name in once:
        await pace.keep()
        if name in twice:
            refused[name] = ErrorCode.INVALID_REQUEST, "the partition is in the request twice"
        elif len(name[0]) > NAME_LENGTH_MAX:
            refused[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_name_error(name[0])
    return refused


async def _by_topic(named: Iterable[tuple[Name, _T]]) -> dict[str, list[tuple[int, _T]]]:
    topics: dict[str, list[tuple[int, _T]]] = {}
    pace = Pace()
    for (topic, index), value in named:
        await pace.keep()
        topics.setdefault(topic, []).append((index, value))
    return topics

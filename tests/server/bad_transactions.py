"""Requests about transactions that are wrong, and what Apache Kafka and kraftpy answer.

`test_transaction_limits.py` sends them to kraftpy, `tests/conformance/test_bad_transactions.py` to
Apache Kafka. Where the two differ, DIFFERENT says so, and why.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from tests.server.test_produce import batch
from tests.server.test_transactions import Id, Producer
from tests.server.wire import Closed, Wire
from tests.waiting import wait_until

Answer = str | list[str]

_FENCED, _OLD = E.PRODUCER_FENCED.name, E.INVALID_PRODUCER_EPOCH.name
_OTHER, _STATE = E.INVALID_PRODUCER_ID_MAPPING.name, E.INVALID_TXN_STATE.name
_REQUEST, _TIMEOUT = E.INVALID_REQUEST.name, E.INVALID_TRANSACTION_TIMEOUT.name
_UNKNOWN, _UNTRIED = E.UNKNOWN_TOPIC_OR_PARTITION.name, E.OPERATION_NOT_ATTEMPTED.name
_FORBIDDEN, _NONE = E.TOPIC_AUTHORIZATION_FAILED.name, E.NONE.name
_NOT_NAMED = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.name

_EPOCHS = ("an epoch of the future", "the last epoch", "no epoch", "an epoch that was")
_IDS = ("the id of another", "no id", "an id that nobody has")

EXPECTED: dict[str, Answer] = {
    # A name that no transactional id can have.
    **{f"{what}, no name": _REQUEST for what in ("find", "init", "end", "describe")},
    **{f"{what}, no name": [_REQUEST] for what in ("add", "produce")},
    # How long a transaction may be open.
    **{f"init, timeout {each}": _TIMEOUT for each in (-(2**31), -1, 0, 900_001, 2**31 - 1)},
    # Who asks for an epoch says whose it had: an id, and an epoch.
    "init, an epoch without an id": _REQUEST,
    "init, an id without an epoch": _REQUEST,
    **{f"init, {each}": _FENCED for each in (*_EPOCHS[:2], _IDS[0], _EPOCHS[3])},
    # Epochs and ids of others.
    **{f"add, {each}": [_FENCED] for each in _EPOCHS},
    **{f"add 1, {each}": [_OLD] for each in _EPOCHS},
    **{f"add, {each}": [_OTHER] for each in _IDS},
    **{f"add offsets, {each}": _FENCED for each in _EPOCHS},
    **{f"add offsets 1, {each}": _OLD for each in _EPOCHS},
    **{f"add offsets, {each}": _OTHER for each in _IDS},
    **{f"end, {each}": _FENCED for each in _EPOCHS},
    **{f"end 1, {each}": _OLD for each in _EPOCHS},
    **{f"end 5, {each}": _FENCED for each in _EPOCHS},
    **{f"abort 5, {each}": _FENCED for each in _EPOCHS},
    **{f"{verb}, {each}": _OTHER for each in _IDS for verb in ("end", "end 5", "abort 5")},
    **{f"produce {n}, {each}": [_OLD] for each in _EPOCHS for n in (9, 11, 12)},
    **{f"produce {n}, {each}": [_OTHER] for each in (_IDS[0], _IDS[2]) for n in (9, 11, 12)},
    # Partitions.
    "add, one that isn't there": [_UNTRIED, _UNKNOWN, _UNKNOWN],
    "add, a negative one": [_UNKNOWN],
    "add, no topic's name": [_UNKNOWN],
    "add, offsets themselves": [_FORBIDDEN, _UNTRIED],
    "add, transactions themselves": [_FORBIDDEN],
    "described after all that": "Empty",
    "add, one often": [_NONE] * 4,
    # Records.
    "produce, two producers": [_OTHER, _OTHER],
    "produce, nobody's": [_NOT_NAMED],
    "produce, of an idempotent producer": [_NONE],
    # Markers of who isn't a coordinator.
    "marker, a producer that nobody knows": [_NONE],
    "marker, partitions that aren't there": [_UNKNOWN, _UNKNOWN],
    "marker, of version 2 with the epoch that is open": [_OLD],
    "marker, of an older epoch": [_OLD],
    "marker, of an older coordinator": [E.TRANSACTION_COORDINATOR_FENCED.name],
    "marker, no producer": [_REQUEST],
    "marker, no epoch": [_REQUEST],
}

_CLOSED = "closed"
_BROKEN = E.UNKNOWN_SERVER_ERROR.name
DIFFERENT: dict[str, Answer] = {
    # Kafka names a coordinator of "", which then refuses all else.
    "find, no name": _NONE,
    # Kafka writes the marker until its checksum or its record can't be made.
    "marker, no producer": [_BROKEN],
    "marker, no epoch": [_BROKEN],
}
"""What Apache Kafka answers."""


class Asker:
    """Sends them over one connection, with names that are nobody else's."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._suffix = uuid.uuid4().hex[:8]
        self._topic = f"bad-{self._suffix}"
        create = m.CreateTopicsRequest
        wire.call(
            ApiKey.CREATE_TOPICS,
            7,
            create([create.CreatableTopic(self._topic, 3, 1)], timeout_ms=10_000),
        )
        wait_until(self._topic_is_there, "the topic")

    def _topic_is_there(self) -> bool:
        wanted = m.MetadataRequest.MetadataRequestTopic(name=self._topic)
        (topic,) = self._wire.call(ApiKey.METADATA, 12, m.MetadataRequest([wanted])).topics
        return not topic.error_code and all(each.leader_id >= 0 for each in topic.partitions)

    def _begun(self, name: str) -> Id:
        begun = self._id(name)
        wait_until(lambda: begun.find() is E.NONE and begun.init() is E.NONE, "its coordinator")
        return begun

    def _id(self, name: str) -> Id:
        return Id(self._wire, f"{name}-{self._suffix}")

    def answers(self) -> Iterator[tuple[str, Answer]]:
        """What was asked, and the answer."""
        parts = (self._names, self._inits, self._others, self._partitions, self._records)
        for part in (*parts, self._markers):
            for what, ask in part():
                try:
                    answer = ask()
                except Closed:
                    answer = _CLOSED
                yield what, _named(answer)

    # -- each: what is asked, and how

    def _names(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        self._begun("first")  # now there are coordinators
        nobody = Id(self._wire, "")
        nobody.producer = 1, 0
        yield "find, no name", nobody.find
        yield "init, no name", nobody.init
        yield "add, no name", lambda: nobody.add((self._topic, 0))
        yield "end, no name", nobody.end
        yield "describe, no name", lambda: nobody.described().error_code
        yield "produce, no name", lambda: [nobody.write(self._topic)]

    def _inits(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        for each in (-(2**31), -1, 0, 900_001, 2**31 - 1):
            yield (
                f"init, timeout {each}",
                lambda each=each: self._id("hurried").init(timeout_ms=each),
            )
        own, other = self._begun("own"), self._begun("other")
        producer_id, epoch = own.producer
        for what, producer in (
            ("an epoch without an id", (-1, epoch)),
            ("an id without an epoch", (producer_id, -1)),
            (_EPOCHS[0], (producer_id, epoch + 1)),
            (_EPOCHS[1], (producer_id, 32_767)),
            (_IDS[0], other.producer),
        ):
            yield f"init, {what}", lambda producer=producer: own.init(producer=producer)
        zombie = own.producer
        for _ in range(2):
            assert self._id("own").init() is E.NONE
        yield f"init, {_EPOCHS[3]}", lambda: own.init(producer=zombie)

    def _others(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        zombie, other = self._begun("owner"), self._begun("else")
        owner = self._begun("owner")
        producer_id, epoch = owner.producer
        wrong = {
            _EPOCHS[0]: (producer_id, epoch + 1),
            _EPOCHS[1]: (producer_id, 32_767),
            _EPOCHS[2]: (producer_id, -1),
            _EPOCHS[3]: zombie.producer,
            _IDS[0]: other.producer,
            _IDS[1]: (-1, -1),
            _IDS[2]: (987_654_321, 0),
        }
        for what, producer in wrong.items():
            yield from self._wrong(owner, what, producer)

    def _wrong(
        self, owner: Id, what: str, producer: Producer
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield f"add, {what}", lambda: owner.add((self._topic, 0), producer=producer)
        yield f"add offsets, {what}", lambda: self._add_offsets(owner, producer)
        yield f"end, {what}", lambda: owner.end(producer=producer)
        yield f"end 5, {what}", lambda: self._end(owner, producer, 5, commit=True)
        yield f"abort 5, {what}", lambda: self._end(owner, producer, 5, commit=False)
        if what in _EPOCHS:
            yield f"add 1, {what}", lambda: self._add(owner, [(self._topic, [0])], producer, 1)
            yield f"add offsets 1, {what}", lambda: self._add_offsets(owner, producer, 1)
            yield f"end 1, {what}", lambda: self._end(owner, producer, 1, commit=True)
        for version in (9, 11, 12) if what != _IDS[1] else ():
            yield (
                f"produce {version}, {what}",
                lambda version=version: [
                    owner.write(self._topic, version=version, producer=producer)
                ],
            )

    def _partitions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        own, topic = self._begun("partitions"), self._topic
        internal = "__consumer_offsets", "__transaction_state"
        for what, topics in (
            ("one that isn't there", [(topic, [0, 99]), ("nowhere", [0])]),
            ("a negative one", [(topic, [-1])]),
            ("no topic's name", [("no name", [0])]),
            ("offsets themselves", [(internal[0], [0]), (topic, [0])]),
            ("transactions themselves", [(internal[1], [0])]),
        ):
            yield f"add, {what}", lambda topics=topics: self._add(own, topics)
        yield "described after all that", lambda: own.described().transaction_state
        yield "add, one often", lambda: self._add(own, [(topic, [0, 0]), (topic, [0, 1])])

    def _records(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        own, other = self._begun("writer"), self._begun("guest")
        assert own.add(*((self._topic, index) for index in range(3))) == [E.NONE] * 3
        mine, theirs = own.producer, other.producer
        yield (
            "produce, two producers",
            lambda: self._produce(own.name, {0: _batch(theirs), 1: _batch(mine)}),
        )
        yield "produce, nobody's", lambda: self._produce(None, {2: _batch(mine)})
        yield (
            "produce, of an idempotent producer",
            lambda: self._produce(own.name, {2: _batch(mine, transactional=False)}),
        )

    def _markers(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        own = self._begun("marked")
        assert own.add((self._topic, 2)) == [E.NONE]
        assert self._produce(own.name, {2: _batch(own.producer)}) == [E.NONE]
        producer_id, epoch = own.producer
        here = [(self._topic, [2])]
        unknown = 777_777, 0
        yield "marker, a producer that nobody knows", lambda: self._mark(unknown, here)
        gone = [("nowhere", [0]), (self._topic, [99])]
        yield "marker, partitions that aren't there", lambda: self._mark(own.producer, gone)
        yield "marker, no producer", lambda: self._mark((-1, 0), here)
        yield "marker, no epoch", lambda: self._mark((producer_id, -1), here)
        yield (
            "marker, of version 2 with the epoch that is open",
            lambda: self._mark(own.producer, here, version=2),
        )
        later = producer_id, epoch + 1
        assert self._mark(later, here, coordinator_epoch=5) == [E.NONE]
        yield "marker, of an older epoch", lambda: self._mark(own.producer, here)
        yield (
            "marker, of an older coordinator",
            lambda: self._mark((producer_id, epoch + 2), here, coordinator_epoch=4),
        )

    # -- requests

    def _add(
        self,
        owner: Id,
        topics: Sequence[tuple[str, list[int]]],
        producer: Producer | None = None,
        version: int = 3,
    ) -> list[int]:
        kinds = m.AddPartitionsToTxnRequest
        wanted = [kinds.AddPartitionsToTxnTopic(*each) for each in topics]
        request = kinds([], owner.name, *(producer or owner.producer), wanted)
        answer = self._wire.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        errors = {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        return [errors[name, index] for name, indexes in topics for index in indexes]

    def _add_offsets(self, owner: Id, producer: Producer, version: int = 3) -> int:
        request = m.AddOffsetsToTxnRequest(owner.name, *producer, f"group-{self._suffix}")
        return int(self._wire.call(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code)

    def _end(self, owner: Id, producer: Producer, version: int, *, commit: bool) -> int:
        request = m.EndTxnRequest(owner.name, *producer, committed=commit)
        return int(self._wire.call(ApiKey.END_TXN, version, request).error_code)

    def _produce(self, name: str | None, batches: dict[int, bytes]) -> list[int]:
        kinds = m.ProduceRequest
        data = [kinds.PartitionProduceData(index, each) for index, each in batches.items()]
        request = kinds(
            name, -1, 10_000, topic_data=[kinds.TopicProduceData(self._topic, partition_data=data)]
        )
        (answer,) = self._wire.call(ApiKey.PRODUCE, 9, request).responses
        return [each.error_code for each in answer.partition_responses]

    def _mark(
        self,
        producer: Producer,
        topics: Sequence[tuple[str, list[int]]],
        *,
        coordinator_epoch: int = 0,
        version: int = 0,
    ) -> list[int]:
        kinds = m.WriteTxnMarkersRequest
        wanted = [kinds.WritableTxnMarkerTopic(*each) for each in topics]
        marker = kinds.WritableTxnMarker(*producer, False, wanted, coordinator_epoch, version)
        answer = self._wire.call(ApiKey.WRITE_TXN_MARKERS, 2, kinds([marker]))
        return [
            each.error_code
            for marked in answer.markers
            for topic in marked.topics
            for each in topic.partitions
        ]


def _batch(producer: Producer, *, transactional: bool = True) -> bytes:
    producer_id, epoch = producer
    return batch(
        b"x",
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=transactional,
    )


def _named(answer: Any) -> Answer:
    if isinstance(answer, list):
        return [E(each).name for each in answer]
    return E(answer).name if isinstance(answer, int) else str(answer)

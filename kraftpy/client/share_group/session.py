"""What a member of a share group asks of one leader, in the session that it has with it (KIP-932).

Rules:

* One request at a time, each with an epoch one above the last one's; 0 begins a session, which is
  told only what changes from then on; -1 ends it, and gives back what is leased.
* A session is of one connection. When that breaks the session is over, and all that was leased in
  it; when a leader answers that it knows of no session, or of another epoch, or for any other error
  of a whole request, the connection is closed, so that others get what was leased at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kraftpy.client.cluster import Cluster
from kraftpy.client.connection import Connection, ConnectionLostError
from kraftpy.client.share_group.acknowledgements import Acknowledgements, Said
from kraftpy.client.share_group.leased import Key, Tenure
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError, error_code

_EPOCH_MAX = 2**31 - 1
_FINAL_EPOCH = -1
_RECORD_LIMIT = 1
# The first version of both requests that knows acquire modes and renewing (KIP-1206, KIP-1222).
_NEWER = 2
_NEEDS_NEWER = "{} serves {} 1 only, and {}: that needs Apache Kafka 4.2, or kraftpy"


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What a fetch asks for; `exact` is share.acquire.mode=record_limit."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    exact: bool


class ShareSession:
    """The session with one leader; `tenure` is another one whenever it had to begin anew."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        member_id: str,
        lane: str,
        options: FetchOptions,
        acknowledgements: Acknowledgements,
        node_id: int,
    ) -> None:
        self.node_id = node_id
        self.tenure = Tenure(node_id)
        self.in_flight = False
        """Whether acknowledgements are under way."""
        self._cluster = cluster
        self._group_id = group_id
        self._member_id = member_id
        self._lane = lane
        self._options = options
        self._acknowledgements = acknowledgements
        self._connection: Connection | None = None
        self._epoch = 0
        self._partitions: frozenset[Key] = frozenset()

    async def connect(self) -> Connection:
        """Sees that there is a connection; raises `ConnectionError` and KafkaError."""
        before = self._connection
        if before is not None:
            if not before.closed:  # whether or not the cluster still names the broker
                return before
            self._lose(ConnectionLostError(f"the connection to {before.address} broke"))
        connection = await self._cluster.connection(self.node_id, self._lane)
        if self._options.exact and not connection.serves(ApiKey.SHARE_FETCH, _NEWER):
            why = "share_acquire_mode is record_limit"
            raise _too_old(connection, ApiKey.SHARE_FETCH, why)
        self._connection = connection
        return connection

    def end(self) -> None:
        """Nothing is asked any more."""
        self._lose(ConnectionLostError("the consumer was closed"))

    def _lose(self, reason: ConnectionError | KafkaError) -> None:
        lost, self.tenure = self.tenure, Tenure(self.node_id)
        self._connection = None
        self._epoch, self._partitions = 0, frozenset()
        self._acknowledgements.lose(lost, reason)

    async def fetch(self, wanted: Collection[Key], said: Mapping[Key, Said]) -> Any:
        """Leases records of these partitions; what is `said` is of some of them.

        Raises `ConnectionError` and KafkaError, and then none of it counts.
        """
        options, kinds = self._options, messages.ShareFetchRequest
        new = [key for key in wanted if key not in self._partitions]
        forgotten = self._partitions.difference(wanted)
        request = kinds(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=options.max_wait_ms,
            min_bytes=options.min_bytes,
            max_bytes=options.max_bytes,
            max_records=options.max_records,
            batch_size=options.max_records,
            share_acquire_mode=_RECORD_LIMIT if options.exact else 0,
            topics=_by_topic(
                dict.fromkeys([*new, *said]),
                kinds.FetchTopic,
                lambda key: kinds.FetchPartition(key[1], _batches(kinds, said, key)),
            ),
            forgotten_topics_data=_by_topic(forgotten, kinds.ForgottenTopic, lambda key: key[1]),
        )
        timeout_ms = options.max_wait_ms + self._cluster.request_timeout_ms
        response = await self._ask(request, said, timeout_ms)
        self._partitions = frozenset(wanted)
        return response

    async def acknowledge(self, said: Mapping[Key, Said], *, final: bool = False) -> Any:
        """Says it, without fetching; `final` ends the session. Raises as `fetch` does."""
        kinds = messages.ShareAcknowledgeRequest
        request = kinds(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=_FINAL_EPOCH if final else self._epoch,
            is_renew_ack=any(each.renewals for each in said.values()),
            topics=_by_topic(
                said,
                kinds.AcknowledgeTopic,
                lambda key: kinds.AcknowledgePartition(key[1], _batches(kinds, said, key)),
            ),
        )
        return await self._ask(request, said, self._cluster.request_timeout_ms)

    async def _ask(self, request: Any, said: Mapping[Key, Said], timeout_ms: int) -> Any:
        connection = self._connection
        assert connection is not None
        self.in_flight = bool(said)
        try:
            if getattr(request, "is_renew_ack", False) and not connection.serves(
                request.API_KEY, _NEWER
            ):
                raise _too_old(connection, request.API_KEY, "a lease is to be renewed")
            response = await connection.request(request, timeout_ms=timeout_ms)
            if response.error_code:
                raise KafkaError(error_code(response.error_code), response.error_message)
        except ConnectionError as error:
            unknown = ConnectionLostError(f"{error}; whether what was said counts isn't known")
            self._acknowledgements.fail(said, unknown)
            self._lose(error)
            raise
        except KafkaError as error:
            self._acknowledgements.fail(said, error)
            self._lose(error)
            await connection.close()
            raise
        finally:
            self.in_flight = False
        self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1
        return response


def _too_old(connection: Connection, api_key: int, why: str) -> KafkaError:
    text = _NEEDS_NEWER.format(connection.address, ApiKey(api_key).name, why)
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)


def _batches(kinds: Any, said: Mapping[Key, Said], key: Key) -> list[Any]:
    return said[key].batches(kinds.AcknowledgementBatch) if key in said else []


def _by_topic(
    keys: Collection[Key], topic: Callable[..., Any], partition: Callable[[Key], Any]
) -> list[Any]:
    topics: dict[bytes, list[Any]] = {}
    for key in keys:
        topics.setdefault(key[0], []).append(partition(key))
    return [topic(topic_id, partitions) for topic_id, partitions in topics.items()]

"""A scripted broker: it reads frames with the codec and answers what the test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import decode_request, decode_request_header, encode_response
from kraftpy.protocol.records import build_batch, iter_records

VERSIONS = {
    ApiKey.PRODUCE: (3, 9),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.METADATA: (1, 12),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
}

HANG_UP = object()
SILENCE = object()


class Peer:
    """One broker, id 1, with topics that exist by name and partition count.

    `answers[api_key]` is a function request -> response (or HANG_UP, or SILENCE) that replaces the
    default answer; `requests` keeps what was asked as (api_key, version, message).
    """

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.topics = topics or {}
        self.versions = dict(VERSIONS)
        self.features: dict[str, int] = {}
        self.answers: dict[ApiKey, Callable[[Any], Any]] = {}
        self.requests: list[tuple[ApiKey, int, Any]] = []
        self.connections = 0
        self.open_connections = 0
        self.port = 0
        self.written: dict[tuple[str, int], list[tuple[bytes | None, bytes | None]]] = {}
        self.raw_batches: list[bytes] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def asked(self, api_key: ApiKey) -> list[Any]:
        return [request for key, _, request in self.requests if key == api_key]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header, position = decode_request_header(frame)
                key = ApiKey(header.api_key)
                low, high = self.versions[key]
                if key == ApiKey.API_VERSIONS and not low <= header.api_version <= high:
                    self.requests.append((key, header.api_version, None))
                    self._write(writer, key, 0, header, messages.ApiVersionsResponse(error_code=35))
                    continue
                assert low <= header.api_version <= high, (key, header.api_version)
                request = decode_request(key, header.api_version, frame, position)
                self.requests.append((key, header.api_version, request))
                answer = self.answers.get(key, self._default)(request)
                if answer is HANG_UP:
                    return
                if answer is not SILENCE:
                    self._write(writer, key, header.api_version, header, answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()

    def _write(
        self, writer: asyncio.StreamWriter, key: ApiKey, version: int, header: Any, answer: Any
    ) -> None:
        body = b"".join(encode_response(key, version, header.correlation_id, answer))
        writer.write(len(body).to_bytes(4, "big") + body)

    def _default(self, request: Any) -> Any:
        return getattr(self, "_" + ApiKey(request.API_KEY).name.lower())(request)

    def _api_versions(self, request: Any) -> Any:
        kinds = messages.ApiVersionsResponse
        return kinds(
            api_keys=[
                kinds.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in self.versions.items()
            ],
            finalized_features=[
                kinds.FinalizedFeatureKey(name=name, max_version_level=level)
                for name, level in self.features.items()
            ],
        )

    def _metadata(self, request: Any) -> Any:
        kinds = messages.MetadataResponse
        names = list(self.topics) if request.topics is None else [t.name for t in request.topics]
        return kinds(
            brokers=[kinds.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            controller_id=1,
            cluster_id="scripted",
            topics=[self.topic_metadata(name) for name in names],
        )

    def topic_metadata(self, name: str, leader: int = 1) -> Any:
        kinds = messages.MetadataResponse
        if name not in self.topics:
            return kinds.MetadataResponseTopic(error_code=3, name=name)
        partitions = [
            kinds.MetadataResponsePartition(
                partition_index=index, leader_id=leader, replica_nodes=[1], isr_nodes=[1]
            )
            for index in range(self.topics[name])
        ]
        return kinds.MetadataResponseTopic(name=name, partitions=partitions)

    def _produce(self, request: Any) -> Any:
        return self.produce_response(request, lambda topic, partition, records: (0, None))

    def produce_response(
        self,
        request: Any,
        judge: Callable[[str, int, bytes], tuple[int, int | None]],
    ) -> Any:
        """Append what `judge` gives error code 0; its second value replaces the base offset."""
        kinds = messages.ProduceResponse
        topics = []
        for topic in request.topic_data:
            partitions = []
            for partition in topic.partition_data:
                data = bytes(partition.records)
                self.raw_batches.append(data)
                code, offset = judge(topic.name, partition.index, data)
                log = self.written.setdefault((topic.name, partition.index), [])
                base = len(log) if offset is None else offset
                if code == 0:
                    log += [(record.key, record.value) for record in iter_records(data)]
                partitions.append(
                    kinds.PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=base if not code else -1
                    )
                )
            topics.append(
                kinds.TopicProduceResponse(name=topic.name, partition_responses=partitions)
            )
        return kinds(responses=topics)

    def _init_producer_id(self, request: Any) -> Any:
        number = 1000 + len(self.asked(ApiKey.INIT_PRODUCER_ID))
        return messages.InitProducerIdResponse(producer_id=number, producer_epoch=0)


def fetch_response(
    partitions: dict[tuple[str, int], bytes],
    *,
    error: int = 0,
    high_watermark: int = 1000,
    aborted: Sequence[tuple[int, int]] = (),
) -> Any:
    """`aborted` are producer ids and first offsets."""
    kinds = messages.FetchResponse
    return kinds(
        responses=[
            kinds.FetchableTopicResponse(
                topic=topic,
                partitions=[
                    kinds.PartitionData(
                        partition_index=index,
                        error_code=error,
                        high_watermark=high_watermark,
                        aborted_transactions=[kinds.AbortedTransaction(*each) for each in aborted],
                        records=records,
                    )
                ],
            )
            for (topic, index), records in partitions.items()
        ]
    )


def batch(base_offset: int, *values: bytes, **options: Any) -> bytes:
    records = [(1_700_000_000_000, None, value, []) for value in values]
    return build_batch(records, base_offset=base_offset, **options)


@asynccontextmanager
async def running(peer: Peer, context: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(peer.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, AssertionError):
                raise result


def list_offsets_answer(offsets: dict[int, int]) -> Callable[[Any], Any]:
    """Answers ListOffsets by timestamp."""
    kinds = messages.ListOffsetsResponse

    def answer(request: Any) -> Any:
        return kinds(
            topics=[
                kinds.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        kinds.ListOffsetsPartitionResponse(
                            partition_index=p.partition_index, offset=offsets[p.timestamp]
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer

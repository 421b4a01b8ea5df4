"""Passing offset requests on to a broker that breaks down in ways a real one seldom does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.metadata import Endpoint
from kraftpy.core.metadata.levels import SECURITY
from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination import offset_forwarding
from kraftpy.server.coordination.offset_forwarding import OffsetForwarding
from kraftpy.server.coordination.peers import Peers
from kraftpy.server.network.dialing import Dialer
from kraftpy.server.network.session import Session

TIMEOUT_MS = 300
CTX: Any = SimpleNamespace(
    api_version=8,
    client_id="c",
    session=Session("PLAINTEXT", peer=("10.0.0.1", 5000), local=("10.0.0.9", 9092)),
)
LEVELS = [SECURITY - 1, SECURITY]
METADATA = SimpleNamespace(level=SECURITY)
NOT_COORDINATOR = int(ErrorCode.NOT_COORDINATOR)
NOT_AVAILABLE = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)


@pytest.fixture(params=LEVELS, autouse=True, ids=["as it is", "in an envelope"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test as in a cluster with brokers of earlier releases, and in one without."""
    monkeypatch.setattr(METADATA, "level", request.param)


def commit() -> tuple[messages.OffsetCommitRequest, messages.OffsetCommitResponse]:
    """A commit and this broker's own answer to it."""
    kinds, answers = messages.OffsetCommitRequest, messages.OffsetCommitResponse
    partition = kinds.OffsetCommitRequestPartition(0, 5)
    refused = answers.OffsetCommitResponsePartition(0, NOT_COORDINATOR)
    return (
        kinds("g", topics=[kinds.OffsetCommitRequestTopic("t", partitions=[partition])]),
        answers(topics=[answers.OffsetCommitResponseTopic("t", partitions=[refused])]),
    )


def fetch() -> tuple[messages.OffsetFetchRequest, messages.OffsetFetchResponse]:
    kinds, answers = messages.OffsetFetchRequest, messages.OffsetFetchResponse
    refused = answers.OffsetFetchResponseGroup("g", error_code=NOT_COORDINATOR)
    return kinds(groups=[kinds.OffsetFetchRequestGroup("g")]), answers(groups=[refused])


def error_of(answer: Any) -> int:
    if isinstance(answer, messages.OffsetFetchResponse):
        return int(answer.groups[0].error_code)
    return int(answer.topics[0].partitions[0].error_code)


class Coordinator:
    """Another broker. It breaks the connection, or is silent, for the first `breaks` requests.

    Its answers are about these groups.
    """

    def __init__(
        self,
        breaks: int = 0,
        *,
        silent: bool = False,
        versions: tuple[int, int] = (0, 8),
        groups: str = "g",
    ) -> None:
        self.seen: list[ApiKey] = []
        self.connections = 0
        self._breaks = breaks
        self._silent = silent
        self._versions = versions
        self._groups = groups

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header, _ = codec.decode_request_header(frame)
                key = ApiKey(header.api_key)
                answer = self._open(frame) if key is ApiKey.ENVELOPE else self._answer(key)
                if answer is not None:
                    parts = codec.encode_response(
                        key, header.api_version, header.correlation_id, answer
                    )
                    data = b"".join(map(bytes, parts))  # type: ignore[arg-type]
                    writer.write(len(data).to_bytes(4, "big") + data)
                elif not self._silent:
                    break
        writer.close()

    def _open(self, frame: memoryview) -> Any:
        """The answer to what is in an envelope."""
        _, position = codec.decode_request_header(frame)
        envelope = codec.decode_request(ApiKey.ENVELOPE, 0, frame, position)
        _, principal = codec.decode_versioned("DefaultPrincipalData", envelope.request_principal)
        assert (principal.type, principal.name) == ("User", "ANONYMOUS")
        assert envelope.client_host_address == bytes((10, 0, 0, 1))
        header, _ = codec.decode_request_header(envelope.request_data)
        key = ApiKey(header.api_key)
        assert (METADATA.level, header.client_id) == (SECURITY, "c")
        answer = self._answer(key)
        if answer is None:
            return None
        parts = codec.encode_response(key, header.api_version, header.correlation_id, answer)
        return messages.EnvelopeResponse(b"".join(map(bytes, parts)))  # type: ignore[arg-type]

    def _answer(self, key: ApiKey) -> Any:
        if key is ApiKey.API_VERSIONS:
            kinds: tuple[ApiKey, ...] = (
                ApiKey.API_VERSIONS,
                ApiKey.OFFSET_COMMIT,
                ApiKey.OFFSET_FETCH,
            )
            if METADATA.level >= SECURITY:
                kinds += (ApiKey.ENVELOPE,)
            entries = [messages.ApiVersionsResponse.ApiVersion(k, *self._versions) for k in kinds]
            return messages.ApiVersionsResponse(api_keys=entries)
        self.seen.append(key)
        if len(self.seen) <= self._breaks:
            return None
        answer = commit()[1] if key is ApiKey.OFFSET_COMMIT else fetch()[1]
        if key is ApiKey.OFFSET_COMMIT:
            answer.topics[0].partitions[0].error_code = 0  # type: ignore[union-attr]
        else:
            group = messages.OffsetFetchResponse.OffsetFetchResponseGroup
            answer.groups = [group(group_id) for group_id in self._groups]  # type: ignore[union-attr]
        return answer


@contextlib.asynccontextmanager
async def forwarding_to(coordinator: Coordinator | None) -> AsyncIterator[OffsetForwarding]:
    """What passes on to this broker, broker 2; without one nobody coordinates."""
    server = None
    address = None
    if coordinator is not None:
        server = await asyncio.start_server(coordinator.serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()

    async def coordinator_of(group_id: str, deadline_s: float, *, allow_empty: bool) -> int:
        if coordinator is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return 2

    host: Any = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        node_id=1,
        config=SimpleNamespace(offsets_commit_timeout_ms=TIMEOUT_MS),
        metadata=METADATA,
        groups=SimpleNamespace(coordinator_of=coordinator_of),
        dialer=Dialer(
            lambda _: address and Endpoint("PLAINTEXT", *address, "PLAINTEXT"), lambda: None
        ),
    )
    host.peers = Peers(host)
    forwarding = OffsetForwarding(host)
    try:
        yield forwarding
    finally:
        await forwarding._host.peers.close()
        if server is not None:
            server.close()


def relay(coordinator: Coordinator | None, request: Any, answer: Any, times: int = 1) -> list[int]:
    """The errors of so many requests at once."""

    async def run() -> list[int]:
        async with forwarding_to(coordinator) as forwarding:
            answers = [
                forwarding.relay(CTX, request, answer, lambda request: pytest.fail("served here"))
                for _ in range(times)
            ]
            return [error_of(each) for each in await asyncio.gather(*answers)]

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_a_commit_that_was_sent_is_not_sent_again() -> None:
    coordinator = Coordinator(breaks=1)
    assert relay(coordinator, *commit()) == [NOT_AVAILABLE]
    assert coordinator.seen == [ApiKey.OFFSET_COMMIT]


def test_a_read_is_asked_again() -> None:
    coordinator = Coordinator(breaks=2)
    assert relay(coordinator, *fetch()) == [0]
    assert coordinator.seen == [ApiKey.OFFSET_FETCH] * 3


@pytest.mark.parametrize("groups", ["", "h", "gg"])
def test_an_answer_about_other_groups_is_none(groups: str) -> None:
    assert relay(Coordinator(groups=groups), *fetch()) == [NOT_AVAILABLE]


def test_silence_ends_with_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_forwarding, "ANSWER_GRACE_S", 0.0)
    coordinator = Coordinator(breaks=1, silent=True)
    assert relay(coordinator, *commit()) == [NOT_AVAILABLE]
    assert coordinator.seen == [ApiKey.OFFSET_COMMIT]


def test_a_group_without_a_coordinator() -> None:
    assert relay(None, *commit()) == [NOT_AVAILABLE]
    assert relay(None, *fetch()) == [NOT_AVAILABLE]


def test_requests_that_meet_the_end_of_the_broker_are_answered() -> None:
    """One waits for its connection, one begins while that is given up, one comes too late."""

    async def run() -> None:
        never = asyncio.Event()
        async with forwarding_to(Coordinator()) as forwarding:
            opening = asyncio.Event()

            async def hang(*_: Any) -> Any:
                opening.set()
                await never.wait()

            forwarding._host.peers._open = hang  # type: ignore[method-assign]

            async def ask(request: Any, answer: Any) -> int:
                serve = lambda request: pytest.fail("served here")  # noqa: E731
                return error_of(await forwarding.relay(CTX, request, answer, serve))

            waiting = asyncio.create_task(ask(*commit()))
            await opening.wait()
            # As it is tried again: it makes a connection of its own kind, while this one ends.
            beside = asyncio.create_task(ask(*fetch()))
            await forwarding._host.peers.close()
            assert await waiting == NOT_AVAILABLE
            assert await beside == NOT_AVAILABLE
            assert await ask(*commit()) == NOT_AVAILABLE

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("versions", [(0, 7), (9, 10)])
def test_a_broker_of_another_release_is_not_asked_what_it_does_not_know(
    versions: tuple[int, int],
) -> None:
    coordinator = Coordinator(versions=versions)
    assert relay(coordinator, *commit()) == [NOT_COORDINATOR]
    assert coordinator.seen == []


def test_requests_share_a_connection_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_forwarding, "MAX_IN_FLIGHT", 5)
    coordinator = Coordinator()
    errors = []
    for _ in range(2):
        request, answer = commit()
        errors += relay(coordinator, request, answer, times=5)
    assert errors == [0] * 10
    assert coordinator.connections == 2  # one in each of two lives
    assert relay(Coordinator(), *commit(), times=6).count(NOT_AVAILABLE) == 1

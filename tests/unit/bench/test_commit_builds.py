"""What a bare commit leaves out is not what a commit is, nor that all have it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns, read_offset_runs
from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import FetchRequest, OffsetCommitRequest
from kraftpy.protocol.record_batch import read_batch_header, split_batches
from tests.bench.commit_builds import _Leader, bare_commit, log_path

VERSION = 9
FETCH_VERSION = 16
HEADER_BYTES = 61
LEADER_ID = 7
FOLLOWERS = (8, 9)


def commit_frame(topics: dict[str, Sequence[int]]) -> memoryview:
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        each, 1000 + each, 3, committed_metadata=None
                    )
                    for each in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
    )
    parts = codec.encode_request(ApiKey.OFFSET_COMMIT, VERSION, 5, "client", request)
    return memoryview(b"".join(parts))


def test_a_bare_commit_writes_keeps_and_answers_all_that_is_committed() -> None:
    topics = {"t": range(100), "u": [7]}
    kept: dict[tuple[str, str], OffsetRun] = {}
    batch, answer = bare_commit(commit_frame(topics), kept, 42)
    wanted = [
        OffsetRun(
            "g",
            name,
            list(partitions),
            [1000 + each for each in partitions],
            [3] * len(partitions),
            [42] * len(partitions),
        )
        for name, partitions in topics.items()
    ]
    written = read_offset_runs(batch[HEADER_BYTES:], 101)
    assert written is not None
    assert list(OffsetRuns(written)) == list(OffsetRuns(wanted))
    assert read_batch_header(batch, 0).records_count == 101
    assert kept == {(run.group_id, run.topic): run for run in wanted}
    assert len(answer) == 4 + int.from_bytes(answer[:4])
    correlation_id, response = codec.decode_response(ApiKey.OFFSET_COMMIT, VERSION, answer[4:])
    assert correlation_id == 5
    answered = {
        topic.name: {each.partition_index: each.error_code for each in topic.partitions}
        for topic in response.topics
    }
    assert answered == {name: dict.fromkeys(each, 0) for name, each in topics.items()}


class Peer:
    """Who is connected to a leader: how many answers are due, and those that came."""

    def __init__(self) -> None:
        self.due = 0
        self.answers: list[bytes] = []

    def defer(self, concurrent: bool) -> Peer:
        self.due += 1
        return self

    def complete(self, slot: Peer, parts: list[bytes]) -> None:
        self.due -= 1
        self.respond(parts)

    def respond(self, parts: list[bytes]) -> None:
        self.answers.append(b"".join(parts))


class Nodes:
    """A leader, and followers that only listen."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, followers: Sequence[int]) -> None:
        self._called: list[Callable[[], None]] = []
        self.sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in followers
        ]
        addresses = [sock.getsockname()[:2] for sock in self.sockets]
        brokers = {
            node_id: SimpleNamespace(endpoints=[SimpleNamespace(host=host, port=port)])
            for node_id, (host, port) in zip(followers, addresses, strict=True)
        }
        broker: Any = SimpleNamespace(
            node_id=LEADER_ID,
            loop=SimpleNamespace(call_soon=self._called.append),
            metadata=SimpleNamespace(brokers={LEADER_ID: None, **brokers}),
            config=SimpleNamespace(data_dirs=[str(folder)]),
        )
        self.leader = _Leader(broker)
        self.log = log_path(folder, LEADER_ID)

    def turn(self) -> None:
        """The loop begins another turn."""
        called = self._called.copy()
        self._called.clear()
        for function in called:
            function()

    def commit(self, peer: Peer, partitions: int) -> None:
        self.leader.commit(peer, commit_frame({"t": range(partitions)}))

    def fetch(self, peer: Peer, follower: int, offset: int) -> None:
        wanted = FetchRequest.FetchPartition(0, 0, offset, 0, 0, 1_000_000)
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(follower, 1),
            topics=[FetchRequest.FetchTopic(topic_id=bytes(16), partitions=[wanted])],
        )
        parts = codec.encode_request(ApiKey.FETCH, FETCH_VERSION, offset, "bare", request)
        frame = memoryview(b"".join(parts))
        self.leader.fetch(peer, frame)


def fetched(answer: bytes) -> tuple[int, bytes]:
    """The high watermark and the records of a leader's answer."""
    assert len(answer) == 4 + int.from_bytes(answer[:4])
    _, response = codec.decode_response(ApiKey.FETCH, FETCH_VERSION, answer[4:])
    ((data,),) = [topic.partitions for topic in response.responses]
    return data.high_watermark, bytes(data.records)


def test_a_bare_commit_is_answered_when_all_others_have_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = Nodes(tmp_path, stack, FOLLOWERS)
        for sock in nodes.sockets:
            asking, _ = sock.accept()
            invitation = stack.enter_context(asking).recv(100)
            assert invitation[:4] == (len(invitation) - 4).to_bytes(4)
            assert invitation[-4:] == LEADER_ID.to_bytes(4)
        clients, peers = [Peer() for _ in range(3)], {each: Peer() for each in FOLLOWERS}
        for follower, peer in peers.items():
            nodes.fetch(peer, follower, 0)
        # None is due: a node that is stopped would wait for them.
        assert [(each.due, each.answers) for each in peers.values()] == [(0, [])] * 2
        for client in clients[:2]:
            nodes.commit(client, 3)
        nodes.turn()
        nodes.commit(clients[2], 100)
        nodes.turn()
        written = nodes.log.read_bytes()
        batches = split_batches(written)
        assert [header.base_offset for _, header in batches] == [0, 3, 6]
        third_at = batches[2][0]
        for peer in peers.values():
            assert [fetched(each) for each in peer.answers] == [(0, written[:third_at])]
        first, second = FOLLOWERS
        nodes.fetch(peers[first], first, 6)
        nodes.turn()
        assert fetched(peers[first].answers[-1]) == (0, written[third_at:])
        assert [client.due for client in clients] == [1, 1, 1]
        nodes.fetch(peers[first], first, 106)
        nodes.fetch(peers[second], second, 6)
        assert [client.due for client in clients] == [0, 0, 1]
        nodes.turn()
        assert fetched(peers[second].answers[-1]) == (6, written[third_at:])
        assert len(peers[first].answers) == 2  # there is nothing new for it
        nodes.fetch(peers[second], second, 106)
        assert [len(client.answers) for client in clients] == [1, 1, 1]


def test_a_bare_commit_on_one_node_is_answered_at_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = Nodes(tmp_path, stack, ())
        client = Peer()
        nodes.commit(client, 3)
        nodes.commit(client, 3)
        assert (client.due, len(client.answers)) == (0, 2)
        batches = split_batches(nodes.log.read_bytes())
        assert [header.base_offset for _, header in batches] == [0, 3]

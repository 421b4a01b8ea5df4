"""What bounds a figure: the client that measures, and a kraftpy that does less.

* `mock_broker`: librdkafka's own, which stores nothing: how fast the client is when nobody is slow.
* `Answering`: a kraftpy whose commits are repeated answers: what its loop and its sockets take.
  `RelayingQuorum`: three of which one sends each commit to the others and waits for a sign of each.
* `Committing`: a kraftpy that commits in one function, without a group or a check: what Python
  takes at least. `CommittingQuorum`: three, two of which fetch what the third has taken.

The mock broker runs in this process, on threads of its own and without Python, and is reached by
TCP. The wheel of confluent-kafka has no way to it, so it is called in the library inside the wheel.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from tests.bench import builds, commit_builds
from tests.bench.load import library
from tests.processes import Kraftpy
from tests.quorums import KraftpyQuorum

_ERROR_BYTES = 512
_PRODUCER = 0


class Answering(Kraftpy):
    """A node of the build `answering` (`tests.bench.commit_builds`)."""

    @staticmethod
    def command(*args: str) -> list[str]:
        return builds.command(commit_builds.answering, *args)


class Committing(Kraftpy):
    """A node of the build `committing` (`tests.bench.commit_builds`)."""

    @staticmethod
    def command(*args: str) -> list[str]:
        return builds.command(commit_builds.committing, *args)


class RelayingQuorum(KraftpyQuorum):
    """Three nodes of the build `relaying` (`tests.bench.commit_builds`)."""

    def command(self, node: int) -> list[str]:
        config = str(self.configs[node])
        return builds.command(commit_builds.relaying, "server", "--config", config)


class CommittingQuorum(KraftpyQuorum):
    """Three nodes of the build `committing` (`tests.bench.commit_builds`)."""

    def command(self, node: int) -> list[str]:
        config = str(self.configs[node])
        return builds.command(commit_builds.committing, "server", "--config", config)


@contextlib.contextmanager
def mock_broker(topic: str, partitions: int) -> Iterator[str]:
    """The address of a mock broker that has this topic; there has to be a `library`."""
    found = ctypes.CDLL(str(library()))
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, result, arguments in (
        ("conf_new", pointer, []),
        ("conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("destroy", None, [pointer]),
        ("handle_mock_cluster", pointer, [pointer]),
        ("mock_cluster_bootstraps", text, [pointer]),
        ("mock_topic_create", number, [pointer, text, number, number]),
    ):
        function = getattr(found, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    conf = found.rd_kafka_conf_new()
    for key, value in ((b"test.mock.num.brokers", b"1"), (b"log_level", b"0")):
        found.rd_kafka_conf_set(conf, key, value, error, _ERROR_BYTES)
    handle = found.rd_kafka_new(_PRODUCER, conf, error, _ERROR_BYTES)
    if not handle:
        raise RuntimeError(f"librdkafka can't start: {error.value.decode()}")
    try:
        cluster = found.rd_kafka_handle_mock_cluster(handle)
        found.rd_kafka_mock_topic_create(cluster, topic.encode(), partitions, 1)
        yield found.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        found.rd_kafka_destroy(handle)  # and its cluster

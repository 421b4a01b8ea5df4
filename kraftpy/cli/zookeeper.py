"""The offsets that the consumers of Kafka's first versions keep in ZooKeeper, read and written.

    /consumers/[group]/offsets/[topic]/[partition] -> the next offset, in decimal digits
    /consumers/[group]/ids/[consumer]              ephemeral, there while a consumer runs

(seed 002, "Consumer Id Registry" and "Consumer Offset Tracking"). Rules:

* What the server sends is bounded: the size of an answer, the number of offsets, the time of each
  request. A broken connection ends the command: it can be run again.
* A node is replaced only if it is as it was read (by its version).
* Requests are pipelined: a round trip for each of many thousand nodes would take minutes.
"""

from __future__ import annotations

import logging
import re
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from kraftpy.cli.common import (
    EXIT_BROKER_ERROR,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Failure,
)
from kraftpy.frozen import NamedTuple
from kraftpy.wording import counted

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError
    from kazoo.handlers.threading import SequentialThreadingHandler
    from kazoo.hosts import collect_hosts
except ImportError:
    raise Failure(
        "ZooKeeper needs an extra of kraftpy: `pip install 'kraftpy[zookeeper]'`", EXIT_USAGE
    ) from None

OFFSETS_MAX = 1_000_000
# jute.maxbuffer of a server is 1 MB unless it was raised for folders with many children.
_ANSWER_MAX_BYTES = 16 * 1024 * 1024
_PIPELINED = 200
# Far more than the digits of an offset: what is longer is none.
_VALUE_KEPT_BYTES = 40
_CONSUMERS = "/consumers"
# Kafka's servers and ours have no other characters in topics; groups may.
_NOT_IN_A_NODE = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


Place = tuple[str, str, str]
"""Group, topic and partition, the latter as the name of a node."""


class StoredOffset(NamedTuple):
    """A node below a group's offsets, as it is: neither name nor value need make sense."""

    place: Place
    value: bytes
    version: int


class _Socket(socket.socket):
    """Refuses an answer that is too large: it is received with one call that tells its size."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        if bufsize > _ANSWER_MAX_BYTES:
            raise ConnectionAbortedError(f"an answer of {bufsize} bytes")
        return super().recv(bufsize, flags)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """`failure` is what ended kazoo's connection thread, if anything did: nonsense, received."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        def guarded() -> None:
            try:
                func(*args, **kwargs)
            except Exception as error:  # would be printed with a traceback
                self.failure = error

        return super().spawn(guarded)

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        plain: socket.socket = super().create_connection(*args, **kwargs)
        return _Socket(plain.family, plain.type, plain.proto, fileno=plain.detach())


class ZooKeeper:
    """A session; `with ZooKeeper(...)` ends it.

    `hosts` is HOST:PORT[,...][/CHROOT]. Every method raises `Failure`.
    """

    def __init__(self, hosts: str, *, timeout_ms: int) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_ms / 1000
        quiet = logging.Logger("kraftpy.zookeeper")
        quiet.addHandler(logging.NullHandler())
        self._handler = _Handler()
        self._client = KazooClient(
            hosts=hosts, timeout=self._timeout_s, handler=self._handler, logger=quiet
        )

    def __enter__(self) -> ZooKeeper:
        self._check_reachable()
        try:
            with warnings.catch_warnings(action="ignore"):  # of a chroot that is not there
                self._client.start(self._timeout_s)
        except self._handler.timeout_exception:
            raise self._unreachable(f"no session within {self._timeout_s:g} s") from None
        try:
            if self._result(self._client.exists_async("/")) is None:
                raise Failure(
                    f"ZooKeeper has no {self._client.chroot!r}: is the chroot behind the address "
                    "right?",
                    EXIT_BROKER_ERROR,
                )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._client.stop()
        self._client.close()

    def _check_reachable(self) -> None:
        """Says at once why no server takes a connection; the session would be tried for long."""
        reasons = []
        for host, port in collect_hosts(self._hosts)[0]:
            try:
                socket.create_connection((host, port), self._timeout_s).close()
                return
            except OSError as error:
                reasons.append(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
        raise self._unreachable("; ".join(reasons))

    def _unreachable(self, reason: str) -> Failure:
        if self._handler.failure is not None:
            reason += f", after what makes no sense: {self._handler.failure}"
        return Failure(f"no ZooKeeper answers: {reason}", EXIT_UNREACHABLE)

    # -- reading

    def groups(self) -> list[str]:
        """The groups that ever kept anything there."""
        groups: list[str] | None = self._result(self._client.get_children_async(_CONSUMERS))
        if groups is None:
            where = f" below {self._client.chroot!r}" if self._client.chroot else ""
            raise Failure(
                f"ZooKeeper has no {_CONSUMERS}{where}: give the chroot of the old cluster behind "
                "the address, HOST:PORT/CHROOT",
                EXIT_BROKER_ERROR,
            )
        return sorted(groups)

    def consumers(self, groups: Iterable[str]) -> dict[str, int]:
        """How many consumers of each group run; groups without any are left out."""
        names = list(groups)
        found = self._children(f"{_CONSUMERS}/{group}/ids" for group in names)
        return {group: len(ids) for group, ids in zip(names, found, strict=True) if ids}

    def offsets(
        self, groups: Iterable[str], is_wanted: Callable[[str], bool]
    ) -> Iterator[StoredOffset]:
        """Everything below the offsets of groups, of the topics that are wanted; sorted."""
        names = list(groups)
        topics = [
            (group, topic)
            for group, found in zip(
                names, self._children(f"{_CONSUMERS}/{g}/offsets" for g in names), strict=True
            )
            for topic in found
            if is_wanted(topic)
        ]
        places: list[Place] = []
        children = self._children(f"{_CONSUMERS}/{g}/offsets/{topic}" for g, topic in topics)
        for (group, topic), nodes in zip(topics, children, strict=True):
            places += [(group, topic, node) for node in nodes]
            if len(places) > OFFSETS_MAX:
                raise Failure(
                    f"ZooKeeper has more than {OFFSETS_MAX} offsets there: choose some with -g "
                    "GROUP or -t TOPIC",
                    EXIT_USAGE,
                )
        values = self._each(self._client.get_async, (_path(*place) for place in places))
        for place, answer in zip(places, values, strict=True):
            if answer is not None:
                value = bytes(answer[0] or b"")[:_VALUE_KEPT_BYTES]
                yield StoredOffset(place, value, answer[1].version)

    def _children(self, paths: Iterable[str]) -> Iterator[list[str]]:
        """The children of each node, sorted; none of a node that is not there."""
        for answer in self._each(self._client.get_children_async, paths):
            yield sorted(answer or ())

    # -- writing

    def create(self, offsets: Mapping[Place, bytes]) -> dict[Place, str]:
        """Makes nodes with their parents; why some were not made."""
        for group, topic in sorted({place[:2] for place in offsets}):
            self._result(self._client.ensure_path_async(_path(group, topic)))
        return self._write(
            {
                place: partial(self._client.create_async, _path(*place), value)
                for place, value in offsets.items()
            }
        )

    def replace(self, offsets: Mapping[Place, tuple[bytes, int]]) -> dict[Place, str]:
        """Gives nodes another value if they have this version; why some were not replaced."""
        return self._write(
            {
                place: partial(self._client.set_async, _path(*place), value, version)
                for place, (value, version) in offsets.items()
            }
        )

    def _write(self, calls: Mapping[Place, Callable[[], Any]]) -> dict[Place, str]:
        refused = {}
        places = list(calls)
        for first in range(0, len(places), _PIPELINED):
            some = places[first : first + _PIPELINED]
            under_way = [calls[place]() for place in some]
            for place, each in zip(some, under_way, strict=True):
                try:
                    if self._result(each) is None:
                        refused[place] = "it is gone"
                except (BadVersionError, NodeExistsError):
                    refused[place] = "somebody else changed it just now"
        return refused

    # -- requests

    def _each(self, call: Callable[[str], Any], paths: Iterable[str]) -> Iterator[Any]:
        """The answer for each path, None where there is no node."""
        waiting = list(paths)
        for first in range(0, len(waiting), _PIPELINED):
            under_way = [call(path) for path in waiting[first : first + _PIPELINED]]
            for each in under_way:
                yield self._result(each)

    def _result(self, request: Any) -> Any:
        try:
            return request.get(timeout=self._timeout_s)
        except NoNodeError:
            return None
        except (BadVersionError, NodeExistsError):
            raise
        except NoAuthError:
            raise Failure(
                f"ZooKeeper does not let this command at all nodes below {_CONSUMERS}: allow it to "
                "world:anyone there, with setAcl of ZooKeeper's zkCli",
                EXIT_BROKER_ERROR,
            ) from None
        except self._handler.timeout_exception:
            raise self._unreachable(f"nothing came for {self._timeout_s:g} s") from None
        except Exception as error:  # kazoo's own, and whatever decoding nonsense raises
            reason = str(error) or type(error).__name__
            raise self._unreachable(f"{reason}. It is safe to run this again") from None


def _path(*names: str) -> str:
    group, *rest = names
    return "/".join([_CONSUMERS, group, "offsets", *rest])


def hosts_problem(hosts: str) -> str:
    """Why this is no HOST:PORT[,...][/CHROOT]; empty if it is one."""
    try:
        collect_hosts(hosts)
    except ValueError as error:
        return f"{hosts!r} is not HOST:PORT[,...][/CHROOT]: {error}"
    return ""


def name_problem(name: str) -> str:
    """Why a node can't have this name; empty if it can."""
    if not name or name in (".", "..") or _NOT_IN_A_NODE.search(name):
        return f"{name!r} can't be the name of a node"
    return ""


def running_text(count: int) -> str:
    """`2 consumers of it run on ZooKeeper`."""
    return f"{counted(count, 'consumer')} of it run{'s' if count == 1 else ''} on ZooKeeper"

"""A broker's side of the quorum: propose, follow the committed commands, wait for an index.

The client is connected to every voter and talks to the one that leads (`links.py`), for as long as
it is open. Rules:

* `on_snapshot(state, index)` comes first, once the quorum was reached, and again whenever the
  entries that the broker missed are no longer kept; then `on_commit(index, command)` in log order,
  each index at most once. Both run on the event loop, must not block, and must not raise: a broker
  whose copy of the metadata has stopped following must not go on, so the client stops for good and
  hands the exception to the loop's exception handler.
* A proposal that got no answer is sent again, unchanged, to each new leader until its deadline.
  The quorum applies it once (`state.ReplicatedState`). When the deadline passes the outcome is
  unknown, and `ProposalTimeout` says so; it is `ControllerUnavailable` if the command never left
  this process, which means that it did not and will not take effect.
* When `propose` returns, `on_commit` has been called for that index on this broker, except after a
  change of leader in between: `wait_applied(index)` makes sure.
* The broker's session with the quorum is as old as the newest heartbeat that a leader answered, by
  the time when it was sent. Once `session_lapsed`, the broker may have been fenced and others may
  lead its partitions, whatever its own copy of the metadata says.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.links import Link, Links
from kraftpy.quorum.liveness import NO_EPOCH
from kraftpy.quorum.messages import FromBroker, FromController, QuorumDescription
from kraftpy.quorum.mutations import Charge
from kraftpy.quorum.packing import unpack
from kraftpy.quorum.port import MAX_COMMAND_SIZE_BYTES, CommandResult
from kraftpy.quorum.state import (
    CLIENT_ID_SIZE_BYTES,
    MAX_OUTSTANDING,
    command_of,
    pack_envelope,
)

_Answer = tuple[int, CommandResult]

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 2_000
SESSION_TIMEOUT_MS = 9_000
MAX_SNAPSHOT_SIZE_BYTES = 1 << 30
_ASK_AGAIN_S = 0.01
_TRANSFER_ATTEMPTS = 3  # each may hold up all proposals until the leader gives it up
_NO_ANSWER = object()


class ControllerUnavailable(Exception):
    """No controller could be reached in time; nothing was changed."""


class ProposalTimeout(Exception):
    """A proposed command was not answered in time: it may or may not have taken effect.

    Once a later proposal of this client has been applied, it can no longer take effect.
    """


class _Outstanding:
    """A proposal that waits for its answer; `envelope` is made when it is first sent."""

    __slots__ = ("attempts", "charge", "client_id", "command", "envelope", "future", "sequence")

    def __init__(self, sequence: int, command: dict[str, Any], charge: Charge | None) -> None:
        self.charge = charge
        self.sequence = sequence
        self.command = command
        self.future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.client_id = b""
        self.envelope = b""
        self.attempts = 0


class ControllerClient:
    """See the module.

    `voters` maps voter ids to (host, port), ids below 0 standing for whoever is there; `node_id` is
    this broker's.
    """

    def __init__(
        self,
        voters: Mapping[int, tuple[str, int]],
        credentials: Credentials,
        node_id: int,
        *,
        on_commit: Callable[[int, dict[str, Any]], None],
        on_snapshot: Callable[[dict[str, Any], int], None],
        on_leader: Callable[[int | None, int], None] = lambda leader_id, term: None,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.node_id = node_id
        self.broker_epoch = NO_EPOCH
        self.applied_index = 0
        self._on_commit = on_commit
        self._on_snapshot = on_snapshot
        self._on_leader = on_leader
        self._session_timeout_s = session_timeout_ms / 1000
        self._links = Links(
            self,
            voters,
            credentials,
            heartbeat_interval_ms / 1000,
            self._session_timeout_s,
        )
        self._has_state = asyncio.Event()
        self._snapshot = bytearray()
        self._closed: str | None = None
        self._request_ids = itertools.count(1)
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._connected = asyncio.Event()
        self._outstanding: dict[int, _Outstanding] = {}  # ascending sequences
        self._slots = asyncio.Semaphore(MAX_OUTSTANDING)
        self._sequences = itertools.count(1)
        self._client_id = os.urandom(CLIENT_ID_SIZE_BYTES)
        self._opened_at: int | None = None
        self._quorum_index = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is an authenticated connection to the controller that leads."""
        return self._links.leading is not None

    @property
    def leader_id(self) -> int | None:
        """The controller that leads, if there is a connection to it."""
        return None if self._links.leading is None else self._links.leading.voter_id

    @property
    def quorum_has_leader(self) -> bool:
        """Whether a controller that can be reached knows one that leads, be that reached or not."""
        return self._links.has_leader

    @property
    def term(self) -> int:
        """The term of the last leader that this client followed; Kafka's controller epoch."""
        return self._links.term

    @property
    def suspects(self) -> frozenset[int]:
        """Brokers whose connections with a controller have just broken: gone, or back soon."""
        return self._links.suspects

    @property
    def session_age_ms(self) -> int:
        """How old the leader's session for this broker may be; see the module's rules."""
        return int((asyncio.get_running_loop().time() - self._links.contact_at_s) * 1000)

    @property
    def session_lapsed(self) -> bool:
        """Whether the quorum may have fenced this broker, and given its leaderships to others."""
        return self.session_age_ms > self._session_timeout_s * 1000

    # -- public calls

    async def start(self, timeout_ms: int) -> None:
        """Connects, and returns once all that had been committed by then has been applied here.

        Raises `ControllerUnavailable`; the client then still goes on trying until `close`.
        """
        self._links.start()
        async with self._deadline(timeout_ms, "reaching the quorum"):
            await self._has_state.wait()
            await self._applied_future(self._quorum_index)

    async def close(self) -> None:
        """Disconnects; proposals fail with `ControllerUnavailable` or `ProposalTimeout`."""
        self._stop("the client was closed")
        await self._links.wait_closed()

    def registered(self, broker_epoch: int) -> None:
        """This broker has registered: heartbeats are for this life of it from now on.

        Call it before proposing `unfence_broker`: the quorum then knows whom it hears.
        """
        self.broker_epoch = broker_epoch
        self._links.heartbeat()

    async def propose(
        self, command: dict[str, Any], timeout_ms: int, charge: Charge | None = None
    ) -> tuple[int, CommandResult]:
        """Has the quorum commit and apply `command`; returns its index and result.

        `charge`: what it counts for. It is told there how long to wait.

        The result's error says whether the rules accepted it. An index of -1 means that it did
        not enter the log: KAFKA_STORAGE_ERROR if the controller's disk is full. Raises
        `ProposalTimeout` (outcome unknown), `ControllerUnavailable` (not proposed), `ValueError` if
        the command is too large or is no msgpack value.
        """
        item: _Outstanding | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._slots:
                self._check_open()
                item = _Outstanding(next(self._sequences), command, charge)
                self._outstanding[item.sequence] = item
                if self._links.leading is not None:
                    self._send(item)
                return await item.future
        except TimeoutError:
            if item is None or item.attempts == 0:
                raise ControllerUnavailable(
                    f"no controller could be reached within {timeout_ms} ms, so the change was "
                    f"not made ({self._links.problem()})"
                ) from None
            raise ProposalTimeout(
                f"the quorum did not answer within {timeout_ms} ms, so whether the change was made "
                f"is unknown ({self._links.problem()})"
            ) from None
        finally:
            if item is not None:
                del self._outstanding[item.sequence]

    async def barrier(self, timeout_ms: int) -> int:
        """Waits until all that was committed before this call has been applied here.

        Returns the index. Raises `ControllerUnavailable`.
        """
        async with self._deadline(timeout_ms, "a barrier"):
            index: int = await self._ask(FromBroker.BARRIER)
            await self._applied_future(index)
        return index

    async def wait_applied(self, index: int, timeout_ms: int) -> None:
        """Waits until this broker has applied `index`. Raises `ControllerUnavailable`."""
        if self.applied_index >= index:
            return
        async with self._deadline(timeout_ms, f"index {index}"):
            await self._applied_future(index)

    async def describe_quorum(self, timeout_ms: int) -> QuorumDescription:
        """Who votes, who leads and how far everybody is. Raises `ControllerUnavailable`."""
        async with self._deadline(timeout_ms, "asking the controller that leads"):
            description: QuorumDescription = await self._ask(FromBroker.DESCRIBE)
        return description

    async def transfer_leadership(self, voter_id: int, timeout_ms: int) -> None:
        """Has the leader of the quorum hand its lead over; returns once `voter_id` leads.

        Raises `ControllerUnavailable` if that did not happen in time, `ValueError` with the reason
        if the leader refused.
        """
        refusals = 0
        async with self._deadline(timeout_ms, f"handing the lead over to {voter_id}"):
            while self.leader_id != voter_id:
                refusal = await self._ask(FromBroker.TRANSFER, voter_id)
                refusals += refusal is not None
                if refusals == _TRANSFER_ATTEMPTS:
                    raise ValueError(refusal)
                await asyncio.sleep(_ASK_AGAIN_S)

    # -- waiting

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ControllerUnavailable(self._closed)

    @contextlib.asynccontextmanager
    async def _deadline(self, timeout_ms: int, what: str) -> AsyncIterator[None]:
        self._check_open()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                yield
        except TimeoutError:
            raise ControllerUnavailable(
                f"{what} took longer than {timeout_ms} ms ({self._links.problem()})"
            ) from None

    def _applied_future(self, index: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.applied_index >= index:
            future.set_result(None)
        else:
            heapq.heappush(self._waiters, (index, next(self._request_ids), future))
        return future

    async def _ask(self, kind: FromBroker, *arguments: Any) -> Any:
        """What a leader answers; asks on for as long as there is none, or it can't say."""
        while True:
            # A leader that was found may be lost again before who waited for it has its turn.
            while (leading := self._links.leading) is None:
                await self._connected.wait()
            request_id = next(self._request_ids)
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._requests[request_id] = future
            try:
                leading.send([kind, request_id, *arguments])
                answer = await future
            finally:
                del self._requests[request_id]
            if answer is not _NO_ANSWER:
                return answer
            await asyncio.sleep(_ASK_AGAIN_S)

    # -- the connection

    def leader_changed(self, link: Link | None) -> None:
        """See `links.Owner`."""
        for request in self._requests.values():
            if not request.done():
                request.set_result(_NO_ANSWER)
        self._snapshot.clear()
        if link is None:
            self._connected.clear()
            self._on_leader(None, self.term)
            return
        self._quorum_index = link.applied_index
        link.send([FromBroker.FOLLOW, self.applied_index + 1 if self._has_state.is_set() else 0])
        for item in list(self._outstanding.values()):
            if not item.future.done():
                self._send(item)
        self._connected.set()
        self._on_leader(link.voter_id, self.term)

    def _stop(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        self._links.close(reason)
        for item in self._outstanding.values():
            if not item.future.done():
                item.future.set_exception(
                    ProposalTimeout(f"{reason} while a proposal was under way")
                    if item.attempts
                    else ControllerUnavailable(reason)
                )
        for request in self._requests.values():
            if not request.done():
                request.set_exception(ControllerUnavailable(reason))
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(ControllerUnavailable(reason))

    # -- messages

    def received(self, link: Link, message: Any) -> None:
        """See `links.Owner`."""
        match message:
            case [FromController.COMMITTED, list(entries)]:
                for index, envelope in entries:
                    self._committed(index, envelope)
                self._wake_waiters()
                self._links.acknowledge()
            case [FromController.REPLY, int(sequence), int(index), int(error), text, value, *wait]:
                item = self._outstanding.get(sequence)
                if item is not None and not item.future.done():
                    if item.charge is not None and wait:
                        item.charge.wait_ms = max(item.charge.wait_ms, *map(int, wait))
                    self._answered(item, index, CommandResult(ErrorCode(error), text, value))
            case [FromController.SNAPSHOT, int(index), int(size), int(position), bytes(chunk)]:
                self._snapshot_chunk(index, size, position, chunk)
            case [FromController.BARRIER_DONE, int(request_id), int() | None as index]:
                self._request_answered(request_id, _NO_ANSWER if index is None else index)
            case [FromController.DESCRIPTION, int(request_id), None]:
                self._request_answered(request_id, _NO_ANSWER)
            case [FromController.DESCRIPTION, int(request_id), description]:
                self._request_answered(request_id, QuorumDescription.unpack(description))
            case [FromController.TRANSFERRED, int(request_id), str() | None as refusal]:
                self._request_answered(request_id, refusal)
            case _:
                raise ValueError("it sent a message of unknown kind or shape")

    def _request_answered(self, request_id: int, answer: Any) -> None:
        future = self._requests.get(request_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def _send(self, item: _Outstanding) -> None:
        assert self._links.leading is not None
        if not item.envelope:
            try:
                self._pack(item)
            except (ValueError, TypeError, OverflowError) as error:
                item.future.set_exception(ValueError(f"not a command: {error}"))
                return
        item.attempts += 1
        charge = () if item.charge is None else (item.charge.pack(),)
        self._links.leading.send([FromBroker.PROPOSE, item.sequence, item.envelope, *charge])

    def _send_again(self, item: _Outstanding) -> None:
        """The controller led no longer, or not yet; another one has got it already."""
        if self._links.leading is not None and not item.future.done():
            self._send(item)

    def _pack(self, item: _Outstanding) -> None:
        if self._opened_at is None:
            self._opened_at = self._quorum_index
        item.client_id = self._client_id
        lowest = next(iter(self._outstanding))
        item.envelope = pack_envelope(
            item.client_id, item.sequence, lowest, self._opened_at, item.command
        )
        if len(item.envelope) > MAX_COMMAND_SIZE_BYTES:
            raise ValueError(
                f"it takes {len(item.envelope)} bytes and the quorum takes up to "
                f"{MAX_COMMAND_SIZE_BYTES}: split it"
            )

    def _answered(self, item: _Outstanding, index: int, result: CommandResult) -> None:
        if index < 0 and result.error is ErrorCode.NOT_CONTROLLER:
            asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._send_again, item)
            return
        if not result.value.get("session_expired"):
            item.future.set_result((index, result))
            return
        if item.client_id == self._client_id:
            self._client_id = os.urandom(CLIENT_ID_SIZE_BYTES)
            self._opened_at = index
        if item.attempts > 1:
            item.future.set_exception(
                ProposalTimeout(
                    "the session with the quorum expired while a proposal was retried, so whether "
                    "the change was made is unknown"
                )
            )
            return
        item.envelope, item.attempts = b"", 0
        self._send(item)

    def _committed(self, index: int, envelope: bytes | None) -> None:
        if index != self.applied_index + 1 or not self._has_state.is_set():
            raise ValueError(f"index {index} came after {self.applied_index}")
        if envelope is not None:
            command = command_of(envelope)
            try:
                self._on_commit(index, command)
            except Exception as error:
                self._callback_failed(f"applying index {index}", error)
                return
        self.applied_index = index

    def _snapshot_chunk(self, index: int, size: int, position: int, chunk: bytes) -> None:
        if position == 0:
            self._snapshot.clear()
        if position != len(self._snapshot) or position + len(chunk) > size:
            raise ValueError("a piece of a snapshot is missing")
        if size > MAX_SNAPSHOT_SIZE_BYTES or index < self.applied_index:
            raise ValueError(f"a snapshot of {size} bytes at index {index} makes no sense here")
        self._snapshot += chunk
        if len(self._snapshot) < size:
            return
        state = unpack(memoryview(self._snapshot))
        self._snapshot = bytearray()
        try:
            self._on_snapshot(state, index)
        except Exception as error:
            self._callback_failed(f"taking over the snapshot at index {index}", error)
            return
        self.applied_index = index
        self._has_state.set()
        self._wake_waiters()

    def _callback_failed(self, what: str, error: Exception) -> None:
        self._stop(f"{what} failed")
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"metadata stopped: {what} failed", "exception": error}
        )

    def _wake_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self.applied_index:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)

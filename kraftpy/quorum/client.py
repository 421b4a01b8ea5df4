"""A broker's side of the quorum: propose, follow the committed commands, wait for an index.

The client keeps one connection, to the controller that leads (any controller says who that is), and
reconnects for as long as it is open.  Rules:

* `on_snapshot(state, index)` comes first, once the quorum was reached, and again whenever the
  entries that the broker missed are no longer kept; then `on_commit(index, command)` in log order,
  each index at most once.  Both run on the event loop, must not block, and must not raise: a broker
  whose copy of the metadata has stopped following must not go on, so the client stops for good and
  hands the exception to the loop's exception handler.
* A proposal that got no answer is sent again, unchanged, after each reconnect until its deadline.
  The quorum applies it once (`state.ReplicatedState`).  When the deadline passes the outcome is
  unknown, and `ProposalTimeout` says so; it is `ControllerUnavailable` if the command never left
  this process, which means that it did not and will not take effect.
* When `propose` returns, `on_commit` has been called for that index on this broker, except after a
  reconnect in between: `wait_applied(index)` makes sure.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.messages import FromBroker, FromController
from kraftpy.quorum.packing import unpack
from kraftpy.quorum.port import MAX_COMMAND_SIZE_BYTES, CommandResult
from kraftpy.quorum.state import (
    CLIENT_ID_SIZE_BYTES,
    MAX_OUTSTANDING,
    command_of,
    pack_envelope,
)
from kraftpy.quorum.transport import FrameConnection

_Answer = tuple[int, CommandResult]

__all__ = ["ControllerClient", "ControllerUnavailable", "ProposalTimeout"]

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_MS = 2_000
SESSION_TIMEOUT_MS = 9_000
CONNECT_TIMEOUT_S = 2.0
RECONNECT_BACKOFF_MIN_S = 0.02
RECONNECT_BACKOFF_MAX_S = 1.0
MAX_SNAPSHOT_SIZE_BYTES = 1 << 30


class ControllerUnavailable(Exception):
    """No controller could be reached in time; nothing was changed."""


class ProposalTimeout(Exception):
    """A proposed command was not answered in time: it may or may not have taken effect.

    Once a later proposal of this client has been applied, it can no longer take effect.
    """


class _Outstanding:
    """A proposal that waits for its answer; `envelope` is made when it is first sent."""

    __slots__ = ("attempts", "client_id", "command", "envelope", "future", "sequence")

    def __init__(self, sequence: int, command: dict[str, Any]) -> None:
        self.sequence = sequence
        self.command = command
        self.future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.client_id = b""
        self.envelope = b""
        self.attempts = 0


class ControllerClient:
    """See the module.  `voters` maps voter ids to (host, port); `node_id` is this broker's."""

    def __init__(
        self,
        voters: Mapping[int, tuple[str, int]],
        secret: bytes,
        node_id: int,
        *,
        on_commit: Callable[[int, dict[str, Any]], None],
        on_snapshot: Callable[[dict[str, Any], int], None],
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.node_id = node_id
        self.applied_index = 0
        self.leader_id: int | None = None
        self.term = 0
        self._voters = dict(voters)
        self._secret = secret
        self._on_commit = on_commit
        self._on_snapshot = on_snapshot
        self._heartbeat_interval_s = heartbeat_interval_ms / 1000
        self._session_timeout_s = session_timeout_ms / 1000
        self._ssl_context = ssl_context
        self._has_state = asyncio.Event()
        self._snapshot = bytearray()
        self._link: _Link | None = None
        self._ready = False
        self._task: asyncio.Task[None] | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._closed: str | None = None
        self._request_ids = itertools.count(1)
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._barriers: dict[int, asyncio.Future[int | None]] = {}
        self._connected = asyncio.Event()
        self._outstanding: dict[int, _Outstanding] = {}  # ascending sequences
        self._slots = asyncio.Semaphore(MAX_OUTSTANDING)
        self._sequences = itertools.count(1)
        self._client_id = os.urandom(CLIENT_ID_SIZE_BYTES)
        self._opened_at: int | None = None
        self._quorum_index = 0
        self._last_problem = "it has not answered yet"

    @property
    def is_connected(self) -> bool:
        """Whether there is an authenticated connection to the controller that leads."""
        return self._ready

    # Public calls

    async def start(self, timeout_ms: int) -> None:
        """Connect, and return once all that had been committed by then has been applied here.

        Raises `ControllerUnavailable`; the client then still goes on trying until `close`.
        """
        self._task = asyncio.get_running_loop().create_task(self._run())
        async with self._deadline(timeout_ms, "reaching the quorum"):
            await self._has_state.wait()
            await self._applied_future(self._quorum_index)

    async def close(self) -> None:
        """Disconnect; what is under way fails with `ControllerUnavailable` or `ProposalTimeout`."""
        self._stop("the client was closed")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def propose(self, command: dict[str, Any], timeout_ms: int) -> tuple[int, CommandResult]:
        """Have the quorum commit and apply `command`; returns its index and result.

        The result's error says whether the rules accepted it.  An index of -1 means that it did
        not enter the log: KAFKA_STORAGE_ERROR if the controller's disk is full.  Raises
        `ProposalTimeout` (outcome unknown), `ControllerUnavailable` (not proposed), `ValueError` if
        the command is too large or is no msgpack value.
        """
        item: _Outstanding | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._slots:
                self._check_open()
                item = _Outstanding(next(self._sequences), command)
                self._outstanding[item.sequence] = item
                if self._ready:
                    self._send(item)
                return await item.future
        except TimeoutError:
            if item is None or item.attempts == 0:
                raise ControllerUnavailable(
                    f"no controller could be reached within {timeout_ms} ms, so the change was "
                    f"not made ({self._last_problem})"
                ) from None
            raise ProposalTimeout(
                f"the quorum did not answer within {timeout_ms} ms, so whether the change was made "
                f"is unknown ({self._last_problem})"
            ) from None
        finally:
            if item is not None:
                del self._outstanding[item.sequence]

    async def barrier(self, timeout_ms: int) -> int:
        """Wait until all that was committed before this call has been applied here.

        Returns the index.  Raises `ControllerUnavailable`.
        """
        async with self._deadline(timeout_ms, "a barrier"):
            index: int | None = None
            while index is None:
                await self._connected.wait()
                index = await self._ask_barrier()
            await self._applied_future(index)
        return index

    async def wait_applied(self, index: int, timeout_ms: int) -> None:
        """Wait until this broker has applied `index`.  Raises `ControllerUnavailable`."""
        if self.applied_index >= index:
            return
        async with self._deadline(timeout_ms, f"index {index}"):
            await self._applied_future(index)

    # Waiting

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
                f"{what} took longer than {timeout_ms} ms ({self._last_problem})"
            ) from None

    def _applied_future(self, index: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.applied_index >= index:
            future.set_result(None)
        else:
            heapq.heappush(self._waiters, (index, next(self._request_ids), future))
        return future

    async def _ask_barrier(self) -> int | None:
        """The index of a barrier, or None if the connection was lost or led elsewhere."""
        request_id = next(self._request_ids)
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._barriers[request_id] = future
        try:
            if self._link is not None:
                self._link.send([FromBroker.BARRIER, request_id])
            return await future
        finally:
            self._barriers.pop(request_id, None)

    # The connection

    async def _run(self) -> None:
        """Keep a connection to the controller that leads."""
        loop = asyncio.get_running_loop()
        others = itertools.cycle(self._voters)
        backoff_s = RECONNECT_BACKOFF_MIN_S
        while self._closed is None:
            voter_id = self.leader_id if self.leader_id in self._voters else next(others)
            assert voter_id is not None
            host, port = self._voters[voter_id]
            link = _Link(self, self._secret, voter_id)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await loop.create_connection(
                        lambda link=link: link, host, port, ssl=self._ssl_context
                    )
            except (OSError, TimeoutError) as error:
                self._problem(f"controller {voter_id} at {host}:{port}: {error or 'no answer'}")
                self.leader_id = None
            else:
                reason = await link.ended
                if link.was_ready:
                    backoff_s = RECONNECT_BACKOFF_MIN_S
                if link.redirected and self.leader_id in self._voters:
                    continue
                self.leader_id = None
                self._problem(f"controller {voter_id} at {host}:{port}: {reason}")
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
            backoff_s = min(backoff_s * 2, RECONNECT_BACKOFF_MAX_S)

    def _problem(self, problem: str) -> None:
        if problem != self._last_problem:
            logger.warning("no connection to the quorum: %s", problem)
        self._last_problem = problem

    def welcomed(self, link: _Link, introduction: Any) -> None:
        """`link` has authenticated; `introduction` is what the controller says of itself."""
        match introduction:
            case [int(voter_id), int() | None as leader_id, int(term), int(applied_index)]:
                pass
            case _:
                raise ValueError("its introduction has the wrong shape")
        if voter_id != link.voter_id:
            raise ValueError(f"it is voter {voter_id}; check the addresses of the voters")
        if term < self.term:
            raise ValueError(
                f"its term {term} is older than {self.term}, which this broker has seen: it was "
                "replaced, or it has lost its metadata"
            )
        self.leader_id, self.term = leader_id, term
        if leader_id != voter_id:
            link.redirected = leader_id is not None
            link.close(
                f"it says that controller {leader_id} leads"
                if leader_id is not None
                else "it knows no leader yet"
            )
            return
        self._link, self._ready, link.was_ready = link, True, True
        self._quorum_index = applied_index
        if self._opened_at is None:
            self._opened_at = applied_index
        logger.info("connected to controller %d, term %d", voter_id, term)
        self._last_problem = "it has not answered yet"
        link.send([FromBroker.FOLLOW, self.applied_index + 1 if self._has_state.is_set() else 0])
        for item in self._outstanding.values():
            if not item.future.done():
                self._send(item)
        self._connected.set()
        self._heartbeat()

    def lost(self, link: _Link) -> None:
        """`link` has ended."""
        if self._link is not link:
            return
        self._link, self._ready = None, False
        self._connected.clear()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        for future in self._barriers.values():
            if not future.done():
                future.set_result(None)

    def _heartbeat(self) -> None:
        assert self._link is not None
        loop = asyncio.get_running_loop()
        if loop.time() - self._link.heard_at > self._session_timeout_s:
            self._link.close(f"it has not answered for {self._session_timeout_s:g} s")
            return
        self._link.send([FromBroker.HEARTBEAT, next(self._request_ids)])
        self._heartbeat_timer = loop.call_later(self._heartbeat_interval_s, self._heartbeat)

    def _stop(self, reason: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason
        if self._link is not None:
            self._link.close(reason)
        for item in self._outstanding.values():
            if not item.future.done():
                item.future.set_exception(
                    ProposalTimeout(f"{reason} while a proposal was under way")
                    if item.attempts
                    else ControllerUnavailable(reason)
                )
        for barrier in self._barriers.values():
            if not barrier.done():
                barrier.set_exception(ControllerUnavailable(reason))
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(ControllerUnavailable(reason))

    # Messages

    def received(self, link: _Link, message: Any) -> None:
        """Handle a message from the controller; `ValueError` if it makes no sense."""
        if self._closed is not None:
            return
        match message:
            case [FromController.COMMITTED, list(entries)]:
                for index, envelope in entries:
                    self._committed(index, envelope)
                self._wake_waiters()
            case [FromController.REPLY, int(sequence), int(index), int(error), text, value]:
                item = self._outstanding.get(sequence)
                if item is not None and not item.future.done():
                    self._answered(item, index, CommandResult(ErrorCode(error), text, value))
            case [FromController.SNAPSHOT, int(index), int(size), int(position), bytes(chunk)]:
                self._snapshot_chunk(index, size, position, chunk)
            case [FromController.BARRIER_DONE, int(request_id), int() | None as index]:
                future = self._barriers.get(request_id)
                if future is not None and not future.done():
                    future.set_result(index)
            case [FromController.ALIVE, int(), int()]:
                pass
            case [FromController.LEADER, int() | None as leader_id, int(term)]:
                self.leader_id, self.term = leader_id, max(term, self.term)
                if leader_id != link.voter_id:
                    link.redirected = leader_id is not None
                    link.close("it no longer leads")
            case _:
                raise ValueError("it sent a message of unknown kind or shape")

    def _send(self, item: _Outstanding) -> None:
        assert self._link is not None
        if not item.envelope:
            try:
                self._pack(item)
            except (ValueError, TypeError, OverflowError) as error:
                item.future.set_exception(ValueError(f"not a command: {error}"))
                return
        item.attempts += 1
        self._link.send([FromBroker.PROPOSE, item.sequence, item.envelope])

    def _pack(self, item: _Outstanding) -> None:
        assert self._opened_at is not None
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
            if self._link is not None:
                self._link.close("it no longer leads")
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


class _Link(FrameConnection):
    """A connection to one controller."""

    def __init__(self, client: ControllerClient, secret: bytes, voter_id: int) -> None:
        super().__init__(secret, dialer=True)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.voter_id = voter_id
        self.was_ready = False
        self.redirected = False
        self.heard_at = self._loop.time()
        self.ended: asyncio.Future[str] = self._loop.create_future()

    def introduction(self) -> Any:
        return [self._client.node_id]

    def authenticated(self, introduction: Any) -> None:
        self._client.welcomed(self, introduction)

    def received(self, message: Any) -> None:
        self.heard_at = self._loop.time()
        self._client.received(self, message)

    def disconnected(self, reason: str | None) -> None:
        self._client.lost(self)
        if not self.ended.done():
            self.ended.set_result(
                reason
                or (
                    "it closed the connection"
                    if self.is_authenticated
                    else "it closed the connection before both had authenticated: compare the two "
                    "secret files, its log says more"
                )
            )

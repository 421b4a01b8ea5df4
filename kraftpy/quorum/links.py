"""A broker's connections to the voters of the quorum, and which of them leads.

The broker is connected to every voter all the time, and uses the connection to the one that leads.
So it needs no search when the leader dies, hangs or is cut off: the voters that elected another one
say so over connections that are there already. And each voter knows from its own connection
whether the broker lives, when it becomes the leader (`liveness.py`).

Rules:

* Of several voters that claim to lead, the one with the highest term does. None is believed that
  claims a term older than that of a leader this broker has followed.
* Ids below 0 stand for controllers of which only the address is known
  (`controller.quorum.bootstrap.servers`): the first that answers says who and where the voters are.
* A lost connection is dialled again soon (it has to be back within `broker.disconnect.grace.ms`),
  then after growing pauses.
* A voter that has answered no heartbeat for the session timeout is disconnected.
* `contact_at_s` is when the newest heartbeat was *sent* that a leader answered: the leader's
  session for this broker can't be older.
* The quorum has a leader as far as this broker knows (`has_leader`) if a voter says so that has
  answered one of the last two heartbeats: that leader itself may be out of this broker's reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Mapping
from typing import Any, Protocol

from kraftpy.quorum.credentials import Credentials
from kraftpy.quorum.messages import FromBroker, FromController, with_level, without_level
from kraftpy.quorum.transport import FrameConnection
from kraftpy.wording import failure_text

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
RECONNECT_BACKOFF_MIN_S = 0.02
RECONNECT_BACKOFF_SEEKING_S = 0.2
RECONNECT_BACKOFF_MAX_S = 1.0
ACKNOWLEDGE_DELAY_S = 0.2


class Owner(Protocol):
    """Who uses the links: the client."""

    node_id: int
    broker_epoch: int
    applied_index: int

    def leader_changed(self, link: Link | None) -> None:
        """`link` leads from now on; None: no voter that can be reached does."""

    def received(self, link: Link, message: Any) -> None:
        """A message from the voter that leads. `ValueError` if it makes no sense."""


class Links:
    """See the module. `voters` maps voter ids to (host, port)."""

    def __init__(
        self,
        owner: Owner,
        voters: Mapping[int, tuple[str, int]],
        credentials: Credentials,
        heartbeat_interval_s: float,
        session_timeout_s: float,
    ) -> None:
        self.owner = owner
        self.credentials = credentials
        self.leading: Link | None = None
        self.suspects: frozenset[int] = frozenset()
        self.term = 0
        self.contact_at_s = asyncio.get_running_loop().time()
        self._voters = dict(voters)
        self._heartbeat_interval_s = heartbeat_interval_s
        self._session_timeout_s = session_timeout_s
        self._links: dict[int, Link] = {}
        self._problems: dict[int, str] = {}
        self._said: set[str] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for voter_id in self._voters:
            self._tasks[voter_id] = loop.create_task(self._keep(voter_id))

    def close(self, reason: str) -> None:
        """Disconnects for good."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        for link in list(self._links.values()):
            link.close(reason)

    async def wait_closed(self) -> None:
        for task in self._tasks.values():
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def heartbeat(self) -> None:
        """Tells all voters now what the next heartbeat would tell them."""
        for link in self._links.values():
            self._beat(link)

    def acknowledge(self) -> None:
        """Tells the leader soon how far this broker is."""
        if self.leading is not None:
            self._schedule_beat(self.leading, ACKNOWLEDGE_DELAY_S)

    @property
    def has_leader(self) -> bool:
        """Whether a voter that can be reached knows a leader; see the module's rules."""
        since_s = asyncio.get_running_loop().time() - 2 * self._heartbeat_interval_s
        return any(
            link.leader_id is not None and link.answered_at_s >= since_s
            for link in self._links.values()
        )

    def problem(self) -> str:
        """Why there is no leader to talk to, for a person."""
        silent = [
            self._problems[voter_id] for voter_id in self._voters if voter_id in self._problems
        ]
        if self._links and self.leading is None:
            silent.insert(0, f"controllers {sorted(self._links)} know no leader")
            silent += [
                f"controller {voter_id} began with an empty folder and doesn't vote until a "
                "leader has brought it up to date"
                for voter_id, link in sorted(self._links.items())
                if link.is_incomplete
            ]
        return "; ".join(silent) or "it has not answered yet"

    # Each voter's connection

    async def _keep(self, voter_id: int) -> None:
        """Keeps a connection to one voter."""
        loop = asyncio.get_running_loop()
        host, port = self._voters[voter_id]
        backoff_s = RECONNECT_BACKOFF_MIN_S
        while not self._closed:
            link = Link(self, voter_id)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await loop.create_connection(
                        lambda link=link: link,
                        host,
                        port,
                        ssl=self.credentials.client_context,
                    )
            except TimeoutError:
                self._failed(voter_id, "no answer")
            except ssl.SSLError as error:
                self._failed(voter_id, str(error))
            except OSError as error:
                self._failed(voter_id, failure_text(error))
            else:
                try:
                    reason = await link.ended
                finally:
                    link.close("the client was closed")
                if link.is_welcome:
                    backoff_s = RECONNECT_BACKOFF_MIN_S
                self._failed(voter_id, reason)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
            longest_s = (
                RECONNECT_BACKOFF_SEEKING_S if self.leading is None else RECONNECT_BACKOFF_MAX_S
            )
            backoff_s = min(backoff_s * 2, longest_s)

    def _failed(self, voter_id: int, why: str) -> None:
        host, port = self._voters[voter_id]
        problem = f"controller {voter_id} at {host}:{port}: {why}"
        if problem not in self._said:
            logger.warning("no connection to %s", problem)
        self._said.add(problem)
        self._problems[voter_id] = problem

    def welcomed(self, link: Link, introduction: Any) -> None:
        """`link` has authenticated; `introduction` is what the controller says of itself."""
        match introduction:
            case [int(voter_id), int() | None as leader_id, int(term), int(index), list(voters)]:
                link.applied_index = index
            case _:
                raise ValueError("its introduction has the wrong shape")
        if link.voter_id < 0:
            self._found(voter_id, voters, self._voters[link.voter_id])
            return
        if voter_id != link.voter_id:
            raise ValueError(f"it is voter {voter_id}; check the addresses of the voters")
        self._links[voter_id] = link
        self._heard_of_leader(link, leader_id, term)
        link.is_welcome = True
        self._problems.pop(voter_id, None)
        self._said = {each for each in self._said if not each.startswith(f"controller {voter_id} ")}
        logger.info("connected to controller %d, term %d", voter_id, term)
        self._beat(link)

    def _found(self, voter_id: int, voters: list[Any], address: tuple[str, int]) -> None:
        """A bootstrap server said who the voters are; of a lone one we know the way already."""
        found: dict[int, tuple[str, int]] = {}
        for each in voters:
            match each:
                case [int(id_), str(host), int(port)] if id_ >= 0:
                    found[id_] = host, port
                case _:
                    raise ValueError("its list of voters has the wrong shape")
        for task in self._tasks.values():
            task.cancel()  # and with it the connection
        self._voters = {voter_id: address} if len(found) == 1 else found
        self._problems.clear()
        self.start()

    def lost(self, link: Link) -> None:
        """`link` has ended."""
        if link.timer is not None:
            link.timer.cancel()
        if self._links.get(link.voter_id) is link:
            del self._links[link.voter_id]
            self._collect_suspects()
            self._choose()

    def received(self, link: Link, message: Any) -> None:
        """Handles what concerns connections and the lead; the rest is the owner's."""
        if self._closed:
            return
        match message:
            case [FromController.ALIVE, int(number), int()]:
                sent_at_s = without_level(number) / 1000
                link.answered_at_s = max(link.answered_at_s, sent_at_s)
                if link is self.leading:
                    self.contact_at_s = max(self.contact_at_s, sent_at_s)
            case [FromController.SUSPECTS, list(suspects)]:
                link.suspects = frozenset(suspects)
                self._collect_suspects()
            case [FromController.LEADER, int() | None as leader_id, int(term)]:
                link.is_incomplete = False
                self._heard_of_leader(link, leader_id, term)
            case [FromController.INCOMPLETE]:
                link.is_incomplete = True
            case _ if link is self.leading:
                self.owner.received(link, message)
            case _:
                pass  # what it had sent before it heard that it no longer leads

    def _collect_suspects(self) -> None:
        self.suspects = frozenset[int]().union(*(link.suspects for link in self._links.values()))

    # -- who leads

    def _heard_of_leader(self, link: Link, leader_id: int | None, term: int) -> None:
        link.leader_id = leader_id
        link.leads_term = term if leader_id == link.voter_id else None
        if link.leads_term is not None and term < self.term:
            raise ValueError(
                f"its term {term} is older than {self.term}, which this broker has seen: it was "
                "replaced, or it has lost its metadata"
            )
        self._choose()

    def _choose(self) -> None:
        best: Link | None = None
        term = self.term
        for link in self._links.values():  # also those that are being closed for an older claim
            if link.leads_term is not None and link.leads_term >= term:
                best, term = link, link.leads_term
        if best is self.leading and term == self.term:
            return
        previous, self.leading, self.term = self.leading, best, term
        self.owner.leader_changed(best)
        if best is not None:
            self._beat(best)
        if previous is not None and previous is not best and previous.leads_term is not None:
            previous.close(f"another controller leads, in term {term}")

    # -- heartbeats

    def _beat(self, link: Link) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - link.answered_at_s > self._session_timeout_s:
            link.close(f"it has not answered for {self._session_timeout_s:g} s")
            return
        owner = self.owner
        number = with_level(int(now_s * 1000))
        link.send([FromBroker.HEARTBEAT, number, owner.broker_epoch, owner.applied_index])
        self._schedule_beat(link, self._heartbeat_interval_s, again=True)

    def _schedule_beat(self, link: Link, delay_s: float, *, again: bool = False) -> None:
        """At the latest after `delay_s`; `again`: not before."""
        loop = asyncio.get_running_loop()
        if link.timer is not None:
            if not again and link.timer.when() <= loop.time() + delay_s:
                return
            link.timer.cancel()
        link.timer = loop.call_later(delay_s, self._beat, link)


class Link(FrameConnection):
    """A connection to one controller."""

    def __init__(self, links: Links, voter_id: int) -> None:
        super().__init__(links.credentials, dialer=True)
        self._links = links
        loop = asyncio.get_running_loop()
        self.voter_id = voter_id
        self.is_welcome = False
        self.is_incomplete = False
        self.suspects: frozenset[int] = frozenset()
        self.leader_id: int | None = None
        """Who leads by what this controller says."""
        self.leads_term: int | None = None
        self.applied_index = 0
        """The controller's, when the connection was made."""
        self.answered_at_s = loop.time()
        self.timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[str] = loop.create_future()

    def introduction(self, other: Any) -> Any:
        owner = self._links.owner
        return ["broker", owner.node_id, owner.broker_epoch]

    def authenticated(self, introduction: Any) -> None:
        self._links.welcomed(self, introduction)

    def received(self, message: Any) -> None:
        self._links.received(self, message)

    def disconnected(self, reason: str | None) -> None:
        self._links.lost(self)
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

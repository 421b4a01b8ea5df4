"""Requests of a test's clients that fail, arrive late, or get lost; and which there were.

Rules:

* Brokers run as they do for everybody: what happens to a request happens in a program between
  clients and nodes (`program`), which reads the protocol with kraftpy's own codec.
* An error stands in every error code of the answer that is about what the request names; which
  those are comes from the schemas (`answers`).
* Clients get to nodes through that program alone. What nodes say to one another, and what
  `kraftpy.testing` asks them, is left alone.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeVar

from kraftpy.testing.process import BrokerError, LineProcess, wait_until

__all__ = ["Fault", "Observation", "Request", "Requests", "WithFaults"]

_PROGRAM = "kraftpy.testing.requests.program"
_TIMEOUT_S = 30.0
_NEAR = 0.6

_Handle = TypeVar("_Handle", bound="_Asked")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a client has sent: `api` as Kafka names it, `topics` those that it names."""

    api: str
    version: int
    client_id: str | None
    topics: tuple[str, ...]


class Requests:
    """The program between clients and nodes; `errors` is where it complains."""

    def __init__(self, errors: IO[bytes] | None, *, secure: bool) -> None:
        self._secure = secure
        self._lock = threading.Lock()
        self._process = LineProcess([sys.executable, "-m", _PROGRAM], errors)
        self.places: dict[int, int] = {}
        """A node's own port -> where it listens for that node."""

    def listen(self, port: int = 0) -> int:
        """Listens for a node, where clients are to find it; 0 for a free port. Its port."""
        return int(self.tell({"listen": port, "tls": self._secure})["port"])

    def target(self, port: int, own: int) -> None:
        """The node for which it listens there has this port itself."""
        self.tell({"target": [port, own]})
        self.places[own] = port

    def placed(self, settings: dict[str, str]) -> dict[str, str]:
        """A node's settings, which name its addresses, with one that has clients come here."""
        client, *others = settings["advertised.listeners"].split(",")
        address, _, own = client.rpartition(":")
        port = self.listen()
        self.target(port, int(own))
        return settings | {"advertised.listeners": ",".join([f"{address}:{port}", *others])}

    def identify(self, ca: Path) -> None:
        """The certificate of the nodes is for clients to see: what `kraftpy dev --secure` made."""
        certificate = ca.with_name("broker.pem")
        self.tell({"certificate": str(certificate), "authority": str(ca)})

    def tell(self, order: dict[str, Any]) -> dict[str, Any]:
        """Gives the program an order; its answer."""
        with self._lock:
            self._process.write_line(json.dumps(order))
            answer: dict[str, Any] = json.loads(self._process.read_line(_TIMEOUT_S))
        return answer

    def end(self) -> None:
        """Stops it, and with it every connection."""
        self._process.end()


class _Asked:
    """Something that is asked of the program, until it is ended."""

    def __init__(self, requests: Requests, rule: dict[str, Any]) -> None:
        self._requests = requests
        self._rule = rule
        self._id = requests.tell({"rule": rule})["id"]

    def __enter__(self: _Handle) -> _Handle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def hits(self) -> int:
        """How many requests it has met."""
        return int(self._look(0)["hits"])

    def wait(self, hits: int = 1, timeout_s: float = 30.0) -> None:
        """Waits until it has met so many requests; `BrokerError` if that doesn't come in time."""
        try:
            wait_until(lambda: self.hits >= hits, "", timeout_s)
        except BrokerError:
            raise BrokerError(
                f"{self!r} has met {self.hits} requests, not {hits}, within {timeout_s:g} s: "
                "observe() shows which there are"
            ) from None

    def end(self) -> None:
        """Leaves requests alone from now on; those that are held back go at once."""
        self._requests.tell({"end": self._id})

    def _look(self, first: int) -> dict[str, Any]:
        return self._requests.tell({"look": self._id, "from": first})


class Fault(_Asked):
    """What is done to requests; `with broker.fault(...) as fault` ends it."""

    def __repr__(self) -> str:
        rule = self._rule
        said = [rule["api"] or "every API"]
        said += [f"{key}={rule[key]!r}" for key in ("topic", "client_id") if rule[key] is not None]
        return f"<fault of {', '.join(said)}>"


class Observation(_Asked):
    """The requests that clients send; `with broker.observe(...) as seen` ends it."""

    def __repr__(self) -> str:
        return f"<observation of {self._rule['api'] or 'every API'}>"

    @property
    def requests(self) -> list[Request]:
        """Those seen so far, in order of their arrival; of more than 10,000 the first."""
        from kraftpy.protocol.api import REQUEST_NAMES

        found: list[Request] = []
        while seen := self._look(len(found))["seen"]:
            found += [
                Request(REQUEST_NAMES[key].removesuffix("Request"), version, client, tuple(topics))
                for key, version, client, topics in seen
            ]
        return found


class WithFaults:
    """What brokers and clusters have in common that were made with `faults=True`."""

    _requests: Requests | None = None

    def fault(
        self,
        api: str | None = None,
        *,
        topic: str | None = None,
        client_id: str | None = None,
        error: str | None = None,
        delay_ms: int | None = None,
        drop: Literal["request", "answer"] | None = None,
        times: int | None = None,
    ) -> Fault:
        """Has clients' requests fail, arrive late, or get lost; one of these three.

            with broker.fault("Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=3):
                ...

        Of several faults that are about a request, the one that was asked for first acts.

        Args:
            api: which requests, by Kafka's name: "Produce", "OffsetCommit"; without, all
            topic: only those that name this topic; of others in a request nothing fails
            client_id: only those of clients with this `client.id`
            error: they get this error, by Kafka's name, and no broker hears of them
            delay_ms: they arrive that much later, and what is behind them on a connection, too
            drop: their connection ends: before a broker has them ("request"), or when one has
                carried them out ("answer")
            times: so many requests; without, all until it ends
        """
        requests = self._faultable()
        if [error, delay_ms, drop].count(None) != 2:
            raise ValueError("a fault has one of error='NAME', delay_ms=NUMBER, drop='request'")
        if error is not None and api is None:
            raise ValueError("errors are those of an API: fault('Produce', error=...)")
        if (delay_ms is not None and delay_ms < 1) or (times is not None and times < 1):
            raise ValueError("delay_ms and times are at least 1")
        if drop not in (None, "request", "answer"):
            raise ValueError(f"drop={drop!r}: it is 'request' or 'answer'")
        rule = _rule(api, topic, client_id)
        if error is not None:
            rule["error"] = _error(error)
        return Fault(
            requests, rule | {"delay_ms": delay_ms or 0, "drop": drop or "", "times": times}
        )

    def observe(
        self, api: str | None = None, *, topic: str | None = None, client_id: str | None = None
    ) -> Observation:
        """Notes which requests clients send, those included that fail.

        with broker.observe("OffsetCommit") as seen:
            ...
        assert seen.requests[0].topics == ("orders",)
        """
        return Observation(self._faultable(), _rule(api, topic, client_id) | {"observes": True})

    def _faultable(self) -> Requests:
        if self._requests is None:
            kind = type(self).__name__
            raise BrokerError(
                f"nothing lies between clients and this {kind.lower()}: make it with "
                f"{kind}(faults=True), and start it"
            )
        return self._requests


def _rule(api: str | None, topic: str | None, client_id: str | None) -> dict[str, Any]:
    """As the program takes it, doing nothing. Raises ValueError."""
    api_key = None if api is None else _api_key(api)
    if topic is not None and api_key is not None:
        from kraftpy.testing.requests.topics import can_name_topics

        if not can_name_topics(api_key):
            raise ValueError(f"{api} names no topics: leave topic={topic!r} out")
    return {
        "api": api,
        "api_key": api_key,
        "topic": topic,
        "client_id": client_id,
        "error": None,
        "delay_ms": 0,
        "drop": "",
        "times": None,
        "observes": False,
    }


def _api_key(api: str) -> int:
    from kraftpy.protocol.api import ADVERTISED, REQUEST_NAMES

    keys = {REQUEST_NAMES[key].removesuffix("Request"): int(key) for key in ADVERTISED}
    if api not in keys:
        raise ValueError(f"Kafka has no API {api!r}{_near(api, keys)}")
    return keys[api]


def _error(name: str) -> int:
    from kraftpy.protocol.errors import ErrorCode

    codes = {each.name: int(each) for each in ErrorCode if each is not ErrorCode.NONE}
    if name not in codes:
        raise ValueError(f"Kafka has no error {name!r}{_near(name, codes)}")
    return codes[name]


def _near(name: str, known: dict[str, int]) -> str:
    import difflib

    lower = {each.lower().replace("_", ""): each for each in known}
    asked = name.lower().replace("_", "").removesuffix("request")
    begins = [each for each in lower if asked and each.startswith(asked)]
    near = difflib.get_close_matches(asked, lower, 1, _NEAR) or begins
    return f"; did you mean {lower[near[0]]!r}?" if near else ""

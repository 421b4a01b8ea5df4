"""The program between clients and nodes: it has requests fail, arrive late, or get lost.

`python -m kraftpy.testing.requests.program` listens for each node, which clients know by this
address alone: the nodes advertise it. It passes on what clients and nodes say.

Rules:

* A request that fails is answered here, and no node hears of it. If it is about other topics, too,
  a node gets that part, and the answers become one (rule 313). Metadata goes to a node first, so
  that clients go on to learn where nodes are.
* Answers go back in the order of their requests, those that are made here, too. What stands behind
  a request that is late is as late.
* A lost request ends its connection, before the node has it, or when the node has answered.
* Nobody has a fetch session: each Fetch names its topics. Produce with acks=0, which has no answer,
  ends its connection if it fails, as with Kafka.
* A connection that logs in by SaslHandshake 0 carries what are no requests, and is left alone.
* It ends with its stdin.

stdin and stdout are lines of JSON: {"listen": port, "tls": true or false}, 0 for any port, answered
with {"port": number}; {"target": [that, the node's own]}; {"certificate": file, "authority": file},
of TLS; {"rule": {...}} as `rules.Rule.of` takes it, answered with {"id": number}; {"look": id,
"from": index}, answered with {"hits": number, "seen": [...]}, and {"end": id}.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.codec import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from kraftpy.protocol.errors import DecodeError
from kraftpy.testing.networks.ports import HOST
from kraftpy.testing.networks.program import SIZE_BYTES, framed, obey, read_frame
from kraftpy.testing.requests import answers, topics
from kraftpy.testing.requests.rules import ANSWER, REQUEST, Rule

_LIMIT_BYTES = 1 << 20
_LOOK_MAX = 500
_NO_SESSION = 0, -1  # its id and epoch in a Fetch that wants none
_TELLS_NAMES = {ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS}
_FIRST_WITH_IDS = {ApiKey.METADATA: 10, ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0}
_READ_ALWAYS = {ApiKey.PRODUCE, ApiKey.FETCH}

_Change = Callable[[Any], None]


class Requests:
    """All connections of clients, and what is to happen to their requests."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}
        self._here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._there = ssl.create_default_context()
        self._targets: dict[int, int] = {}
        self._rules: dict[int, Rule] = {}
        self._made = 0

    async def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out a line of stdin."""
        if "listen" in order:
            return {"port": await self._listen(order["listen"], tls=order["tls"])}
        if "rule" in order:
            self._made += 1
            self._rules[self._made] = Rule.of(order["rule"])
            return {"id": self._made}
        if "look" in order:
            rule, first = self._rules[order["look"]], order["from"]
            return {"hits": rule.hits, "seen": (rule.seen or [])[first : first + _LOOK_MAX]}
        if "end" in order:
            rule = self._rules[order["end"]]
            rule.times = rule.hits
            rule.ended.set()
        if "target" in order:
            port, target = order["target"]
            self._targets[port] = target
        if "certificate" in order:
            self._here.load_cert_chain(order["certificate"])
            self._there.load_verify_locations(order["authority"])
        return {}

    def rules_for(self, header: RequestHeader) -> list[Rule]:
        """What may be about such a request, in the order in which it was asked for."""
        return [
            rule for rule in self._rules.values() if rule.fits(header.api_key, header.client_id)
        ]

    async def _listen(self, wanted: int, *, tls: bool) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError), contextlib.closing(writer):
                context = self._there if tls else None
                node = await asyncio.open_connection(
                    HOST, self._targets.get(port, 0), ssl=context, limit=_LIMIT_BYTES
                )
                await _Connection(self, (reader, writer), node).run()

        server = await asyncio.start_server(
            serve, HOST, wanted, ssl=self._here if tls else None, limit=_LIMIT_BYTES
        )
        port: int = server.sockets[0].getsockname()[1]
        return port


@dataclass(slots=True)
class _Expected:
    """An answer that a client waits for: the node's, changed or not, or one that is made here."""

    header: RequestHeader
    change: _Change | None = None
    made: bytes | None = None
    lost: bool = False


class _Dropped(ConnectionError):
    """The connection is to end."""


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """A client's connection, through to its node."""

    def __init__(self, requests: Requests, client: _Ends, node: _Ends) -> None:
        self._requests = requests
        self._reader, self._writer = client
        self._answers, self._node = node
        self._expected: deque[_Expected] = deque()
        self._is_opaque = False

    async def run(self) -> None:
        both = [asyncio.ensure_future(self._ask()), asyncio.ensure_future(self._answer())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            ends = await asyncio.gather(*both, return_exceptions=True)
            self._node.close()
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, OSError | EOFError):
                raise end

    async def _ask(self) -> None:
        while not self._is_opaque:
            await self._pass_on(await read_frame(self._reader))
        while data := await self._reader.read(_LIMIT_BYTES):
            self._node.write(data)
            await self._node.drain()

    async def _answer(self) -> None:
        while not (self._is_opaque and not self._expected):
            frame = await read_frame(self._answers)
            expected = self._expected.popleft() if self._expected else None
            if expected is not None and expected.lost:
                raise _Dropped
            self._writer.write(frame if expected is None else self._changed(frame, expected))
            self._write_made()
            await self._writer.drain()
        while data := await self._answers.read(_LIMIT_BYTES):
            self._writer.write(data)
            await self._writer.drain()

    def _changed(self, frame: bytes, expected: _Expected) -> bytes:
        key, version = expected.header.api_key, expected.header.api_version
        tells = key in _TELLS_NAMES and version >= _FIRST_WITH_IDS[ApiKey(key)]
        if expected.change is None and not tells:
            return frame
        try:
            number, response = decode_response(key, version, memoryview(frame)[SIZE_BYTES:])
        except ValueError:  # an answer in another version than was asked for (KIP-511)
            return frame
        if tells:
            topics.learn(response, self._requests.names)
        if expected.change is None:
            return frame
        expected.change(response)
        return framed(encode_response(key, version, number, response))

    def _write_made(self) -> None:
        """Writes the answers that were made here and wait for none of the node's."""
        while self._expected and self._expected[0].made is not None:
            self._writer.write(self._expected.popleft().made or b"")

    async def _pass_on(self, frame: bytes) -> None:
        body = memoryview(frame)[SIZE_BYTES:]
        try:
            header, position = decode_request_header(body)
        except DecodeError:  # the node is to say so
            await self._send(frame, None)
            return
        key, version = header.api_key, header.api_version
        rules = self._requests.rules_for(header)
        self._is_opaque = (key, version) == (ApiKey.SASL_HANDSHAKE, 0)
        request = None
        if rules or key in _READ_ALWAYS:
            with contextlib.suppress(ValueError):  # damaged, or newer than the node, which says so
                request = decode_request(key, version, body, position)
        if request is None:
            await self._send(frame, _Expected(header))
            return
        named = topics.topics_of(key, version, request, self._requests.names)
        is_all = topics.is_about_all(key, version, request)
        acting = None
        for rule in rules:
            if rule.topic is None or rule.topic in named or is_all:
                if rule.seen is not None:
                    rule.see([key, version, header.client_id, named])
                elif acting is None and not (rule.drop == ANSWER and _is_unanswered(request)):
                    acting = rule
        await self._act(frame, header, request, acting)

    async def _act(
        self, frame: bytes, header: RequestHeader, request: Any, rule: Rule | None
    ) -> None:
        if _without_session(header, request):
            frame = _reframed(header, request)
        expected = None if _is_unanswered(request) else _Expected(header)
        if rule is not None and rule.error is not None:
            await self._fail(frame, header, request, rule)
            return
        if rule is not None:
            rule.hit()
            if rule.drop == REQUEST:
                raise _Dropped
            if expected is not None:
                expected.lost = rule.drop == ANSWER
            with contextlib.suppress(TimeoutError):
                if rule.delay_s:
                    await asyncio.wait_for(rule.ended.wait(), rule.delay_s)
        await self._send(frame, expected)

    async def _fail(self, frame: bytes, header: RequestHeader, request: Any, rule: Rule) -> None:
        key, version, error, topic = header.api_key, header.api_version, rule.error, rule.topic
        assert error is not None
        if answers.needs_the_brokers(key):

            def spoil(answer: Any) -> None:
                if answers.spoil(version, answer, error, topic):
                    rule.hit()

            await self._send(frame, _Expected(header, spoil))
            return
        failing, rest = request, None
        if topic is not None:
            names = self._requests.names
            failing, rest = topics.about(key, version, request, names, topic)
            if not answers.is_per_topic(key, version, failing):
                failing, rest = request, None
        answer = answers.failed(key, version, failing, error, of_topic=topic is not None)
        if answer is None:
            await self._send(frame, _Expected(header))
            return
        rule.hit()
        if _is_unanswered(request):
            raise _Dropped
        if rest is not None:
            if key == ApiKey.FETCH:
                rest.max_wait_ms = 0  # there is something to answer
            expected = _Expected(header, lambda it: answers.merge(key, it, answer))
            await self._send(_reframed(header, rest), expected)
            return
        made = framed(encode_response(key, version, header.correlation_id, answer))
        self._expected.append(_Expected(header, made=made))
        self._write_made()
        await self._writer.drain()

    async def _send(self, frame: bytes, expected: _Expected | None) -> None:
        if expected is not None:
            self._expected.append(expected)
        self._node.write(frame)
        await self._node.drain()


def _is_unanswered(request: Any) -> bool:
    return getattr(request, "acks", None) == 0


def _without_session(header: RequestHeader, request: Any) -> bool:
    """Has a Fetch ask for no session; whether it did."""
    if header.api_key != ApiKey.FETCH:
        return False
    if (request.session_id, request.session_epoch) == _NO_SESSION:
        return False
    request.session_id, request.session_epoch = _NO_SESSION
    return True


def _reframed(header: RequestHeader, request: Any) -> bytes:
    key, version = header.api_key, header.api_version
    return framed(encode_request(key, version, header.correlation_id, header.client_id, request))


async def _main() -> None:
    await obey(Requests().answer)


if __name__ == "__main__":
    asyncio.run(_main())

"""Requests that were encoded before they are sent: so what is measured is the broker's work."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.process import BrokerError
from tests.processes import receive_exactly, split_address

DEPTH = 5
TIMEOUT_S = 30.0


class Wire:
    """A connection; requests are encoded before they are sent, and answers looked at behind it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(split_address(address), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, version: int, request: object) -> Any:
        (answer,) = self.ask_all(key, version, [request])
        return answer

    def ask_all(self, key: ApiKey, version: int, requests: Sequence[object]) -> list[Any]:
        """The answers, in order; `DEPTH` requests are under way."""
        return self.answers(key, version, self.send(frames_of(key, version, requests)))

    def send(self, frames: Sequence[bytes]) -> list[bytes]:
        answers: list[bytes] = []
        for frame in frames[:DEPTH]:
            self._socket.sendall(frame)
        while len(answers) < len(frames):
            (size,) = struct.unpack(">i", receive_exactly(self._socket, 4))
            answers.append(receive_exactly(self._socket, size))
            if (sent := len(answers) + DEPTH) <= len(frames):
                self._socket.sendall(frames[sent - 1])
        return answers

    @staticmethod
    def answers(key: ApiKey, version: int, answers: Sequence[bytes]) -> list[Any]:
        return [codec.decode_response(key, version, each)[1] for each in answers]


def frames_of(key: ApiKey, version: int, requests: Sequence[object]) -> list[bytes]:
    bodies = (b"".join(codec.encode_request(key, version, 1, "costs", each)) for each in requests)
    return [struct.pack(">i", len(body)) + body for body in bodies]


def check(error: int, what: str) -> None:
    if error:
        raise BrokerError(f"{what} was refused: {ErrorCode(error).name}")

"""What a process of a node answers to the exporter's questions, whichever process it is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Protocol

from kraftpy.metrics.channel import Frame, Responder
from kraftpy.metrics.events import EVENTS, event_frames
from kraftpy.metrics.loop_lag import LoopLag


class Numbers(Protocol):
    """What a process knows, in frames (`frames` says which)."""

    def metrics(self) -> Iterator[Frame]:
        """All that is served to Prometheus."""

    def health(self) -> Iterator[Frame]:
        """Whether it does its work."""

    def node(self) -> Iterator[Frame]:
        """What it is, and how it is."""

    def metadata(self) -> Iterator[Frame]:
        """Brokers and topics."""


def answer(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, numbers: Numbers, lag: LoopLag
) -> Responder:
    """Answers the exporter at the other end of `sock` for as long as both live.

    `lag` ends with it. The process has to say when it has started (`Responder.tell_started`).
    """
    answers = {
        "metrics": numbers.metrics,
        "health": numbers.health,
        "node": numbers.node,
        "metadata": numbers.metadata,
        EVENTS: event_frames,
    }
    return Responder(loop, sock, answers, on_gone=lag.close)

"""The exporter: a process of the node that serves its metrics by HTTP.

It is forked beside the node's other processes and is idle until it is asked; prometheus-client and
the HTTP server are imported then. Rules:

* It asks the others over `channel` and does everything else itself: what the operating system knows
  of the processes and disks, names, formats, compression.
* The lag of a group needs to be told by other brokers, too, where they lead what it reads: see
  `group_lag`.
* A scrape is answered from one asking, one scrape at a time; who comes meanwhile waits. A process
  of the node that doesn't answer is missing from the answer (`kraftpy_process_up` is 0), which is
  given all the same.
* `/metrics` in the text format 0.0.4 or OpenMetrics, as Accept has it, gzip if that is accepted.
  `/healthz`: every process of the node answers, or recovers what it has. `/readyz`: the broker
  serves clients and isn't about to stop, and the quorum has a leader and is in touch.
* Everything else is the site's, which is made when somebody first asks for any of it.
* Bounded: connections at a time, what a request may be, and how long it may take (`http`); labels
  (`frames.label`), so that nobody makes a scrape large by long names.
* A process that is answering a scrape answers, whoever asks for its health meanwhile.
"""

from __future__ import annotations

import gzip
import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kraftpy.metrics.channel import (
    ANSWER_TIMEOUT_S,
    Frame,
    Source,
    SourceBusy,
    SourceUnavailable,
)
from kraftpy.metrics.frames import HEALTH
from kraftpy.metrics.system import System

if TYPE_CHECKING:
    from kraftpy.client.security import Secures
    from kraftpy.metrics.collector import Scrape
    from kraftpy.metrics.door import Door
    from kraftpy.metrics.http import Site
    from kraftpy.metrics.log_ends import LogEnds

HEALTH_TIMEOUT_S = 2.0
_GZIP_LEVEL = 1
_OF_TIMEOUT = 0.8  # so much of a scrape's time is for asking
_LEAST_S = 0.1

logger = logging.getLogger(__name__)


class Exporter:
    """What a node's exporter knows: `sources` are the processes to ask, `dirs` the data folders.

    `open_site` makes what is served beside metrics and checks. Without a `door` everybody comes in;
    `secure` makes that by which other brokers are asked.
    """

    def __init__(
        self,
        node_id: int,
        sources: Sequence[Source],
        dirs: Sequence[str],
        open_site: Callable[[], Site],
        door: Door | None = None,
        secure: Callable[[], Secures] | None = None,
    ) -> None:
        self._node_id = node_id
        self._sources = sources
        self._dirs = dirs
        self._lock = threading.Lock()
        self._open_site = open_site
        self._door = door
        self._secure = secure
        self._opening = threading.Lock()
        self._site: Site | None = None
        self._system = System()
        self._last_health: dict[str, dict[str, bool]] = {}
        self._log_ends: LogEnds | None = None

    def serve(self, listening: socket.socket) -> None:
        """Serves until the process is killed."""
        listening.setblocking(True)
        if self._door is not None and self._door.tls is not None:
            self._door.tls.watch()
        select.select([listening], [], [])
        # Not before somebody comes: most nodes on a laptop are never asked.
        from kraftpy.metrics.door import Door
        from kraftpy.metrics.http import HttpServer

        HttpServer(listening, self, self._door or Door()).serve_forever()

    def metrics(
        self, accept: str, *, compress: bool, timeout_s: float = math.inf
    ) -> tuple[bytes, str]:
        """The answer to a scrape, and its content type; who asks gives up after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        from kraftpy.metrics.collector import encoder_for

        encoder, content_type = encoder_for(accept)
        with self._lock:
            # A client that came meanwhile has used a part of its time.
            text = encoder(self._scrape(max(deadline - time.monotonic(), _LEAST_S)))
        return gzip.compress(text, _GZIP_LEVEL) if compress else text, content_type

    def site(self) -> Site:
        """What is served beside metrics and checks."""
        with self._opening:
            if self._site is None:
                self._site = self._open_site()
            return self._site

    def healthz(self) -> dict[str, bool]:
        """What has to be true of a node that works at all.

        A process that recovers its data answers nothing, however long that takes: until it has told
        that it started it is well, unless it has ended.
        """
        checks = {}
        for source in self._sources:
            answers = bool(self._health(source))
            if answers or source.started:
                checks[f"{source.name} answers"] = answers
            else:
                checks[f"{source.name} answers or starts"] = not source.ended
        return checks

    def readyz(self) -> dict[str, bool]:
        """What has to be true of a node that can be sent clients."""
        checks = {}
        for source in self._sources:
            health = self._health(source)
            checks[f"{source.name} answers"] = bool(health)
            checks.update(health)
        return checks

    def _health(self, source: Source) -> dict[str, bool]:
        try:
            frames = source.ask(HEALTH, HEALTH_TIMEOUT_S)
        except SourceBusy:
            # It is busy with a scrape, so it lives; its last answer to this is one scrape old.
            return self._last_health.get(source.name, {f"{source.name} answers": True})
        except SourceUnavailable:
            return {}
        health: dict[str, bool] = {
            f"{source.name} {what}": value for what, value in frames[0][1].items()
        }
        self._last_health[source.name] = health
        return health

    # -- a scrape

    def _scrape(self, timeout_s: float) -> Scrape:
        from kraftpy.metrics.collector import Scrape

        # Whoever hangs must not keep what the others say from one that gives up early: each
        # process has its share of the time, and so have the brokers that are asked for lag.
        share_s = _OF_TIMEOUT * timeout_s / (len(self._sources) + 1)
        frames: list[Frame] = []
        asked: list[tuple[str, bool, float]] = []
        for source in self._sources:
            started_s = time.monotonic()
            answers = True
            try:
                frames += source.ask("metrics", min(ANSWER_TIMEOUT_S, share_s))
            except SourceUnavailable as error:
                logger.warning("a scrape lacks the %s: %s", source.name, error)
                answers = False
            asked.append((source.name, answers, time.monotonic() - started_s))
        scrape = Scrape(frames, self._node_id)
        self._complete_lag(scrape, share_s)
        for name, answers, took_s in asked:
            scrape.add("kraftpy_process_up", int(answers), name)
            scrape.add("kraftpy_metrics_collect_seconds", took_s, name)
        for source in self._sources:
            self._system.add_process(scrape, source.name, source.pid, loop=True)
        self._system.add_process(scrape, "exporter", os.getpid(), loop=False)
        for folder in self._dirs:
            self._system.add_folder(scrape, folder)
        if self._door is not None and self._door.tls is not None:
            from kraftpy.metrics.door import LISTENER

            expiry_s = self._door.tls.expires_s
            scrape.add("kraftpy_tls_certificate_expiry_timestamp_seconds", expiry_s, LISTENER)
        return scrape

    def _complete_lag(self, scrape: Scrape, timeout_s: float) -> None:
        """Asks other brokers where partitions end, if there are groups that read from them."""
        from kraftpy.metrics.group_lag import complete

        address = scrape.samples.get("kafka_broker_info")
        if address is not None:
            bootstrap = address[0][0][1]
            complete(scrape, self._open_log_ends, bootstrap, time.monotonic(), timeout_s)

    def _open_log_ends(self) -> LogEnds:
        if self._log_ends is None:
            # Not before it's needed: the client takes memory.
            from kraftpy.metrics.log_ends import LogEnds

            self._log_ends = LogEnds() if self._secure is None else LogEnds(self._secure())
        return self._log_ends

"""A node's broker on its loop: from the start until it is told to stop.

Imported when the controller and the exporter have been forked, which need none of it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from kraftpy import __version__, events
from kraftpy.core.config import BrokerConfig, ConfigError
from kraftpy.core.metadata import LaterReleaseError
from kraftpy.core.metadata.commands import ScramUser
from kraftpy.events import emit
from kraftpy.metrics.answering import answer
from kraftpy.metrics.channel import Responder
from kraftpy.metrics.loop_lag import LoopLag
from kraftpy.protocol.errors import KafkaError
from kraftpy.quorum.client import ControllerUnavailable
from kraftpy.quorum.process import GC_THRESHOLDS
from kraftpy.server.broker import Broker
from kraftpy.server.handlers.table import handlers_for
from kraftpy.server.node.exporter_process import ExporterHandle
from kraftpy.server.node.first_user import propose_first
from kraftpy.server.node.metrics import BrokerNumbers
from kraftpy.server.node.starting import NodeInfo, Processes, Ready, StartupError
from kraftpy.storage.manager import LogManager

log = logging.getLogger(__name__)

Serve = Callable[
    [BrokerConfig, list[socket.socket], LogManager, Processes, Ready | None, tuple[ScramUser, ...]],
    Coroutine[Any, Any, int],
]
"""The type of `serve`."""

EXIT_FAILED = 1
EXIT_BUG = 70


async def serve(
    config: BrokerConfig,
    sockets: list[socket.socket],
    logs: LogManager,
    node: Processes,
    ready: Ready | None,
    first_users: tuple[ScramUser, ...],
) -> int:
    gc.set_threshold(*GC_THRESHOLDS)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    events.flush_with(events.calls_on(loop))
    stopping: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopping.done():
            stopping.set_result(code)

    def controller_ended(code: int) -> None:
        reason = f"the controller process ended (exit code {code})"
        emit(log, logging.CRITICAL, "node-failed", node=config.node_id, reason=reason)
        logging.shutdown()
        # Without its controller this node is not a node; what is in the page cache stays there.
        os._exit(EXIT_FAILED)

    def fatal(error: Exception) -> None:
        if isinstance(error, LaterReleaseError):
            log.critical("stopping: %s", error)
        else:
            log.critical("stopping after an unforeseen error", exc_info=error)
        logging.shutdown()
        os._exit(EXIT_FAILED if isinstance(error, LaterReleaseError) else EXIT_BUG)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, 0)
    if node.controller is not None:
        node.controller.watch(loop, controller_ended)
    broker = Broker(
        config,
        handlers=handlers_for(config),
        logs=logs,
        voters=node.quorum.voters,
        credentials=node.quorum.credentials,
        loop=loop,
        on_fatal=fatal,
    )
    _reload_on_signal(loop, broker, node.exporter)
    metrics = _serve_metrics(node, broker)
    exporter = None if node.exporter is None else node.exporter.address
    starting = loop.create_task(broker.start(sockets, exporter))
    try:
        if await _started(starting, stopping):
            await propose_first(broker.controller, broker.metadata, first_users)
            if metrics is not None:
                metrics.tell_started()
            _tell_started(broker, sockets[0], node, ready, loop.time() - began_s)
    except (KafkaError, ControllerUnavailable, ConfigError) as error:
        await _stop(broker, fatal)
        raise StartupError(f"the broker can't join the quorum: {error}") from error
    code = await stopping
    await _stop(broker, fatal)
    events.flush()
    return code


def _serve_metrics(node: Processes, broker: Broker) -> Responder | None:
    if node.metrics is None or node.exporter is None:
        return None
    lag = LoopLag(broker.loop)
    responder = answer(broker.loop, node.metrics, BrokerNumbers(broker, lag), lag)
    node.exporter.watch(broker.loop)
    return responder


def _reload_on_signal(
    loop: asyncio.AbstractEventLoop, broker: Broker, exporter: ExporterHandle | None
) -> None:
    """Has certificates loaded again by SIGHUP, where there are any."""
    reloads = [broker.listener.tls.reload] if broker.listener.tls.by_name else []
    if exporter is not None and exporter.has_tls:
        reloads.append(exporter.reload)
    if reloads:
        loop.add_signal_handler(signal.SIGHUP, lambda: [each() for each in reloads])


async def _started(starting: asyncio.Task[None], stopping: asyncio.Future[int]) -> bool:
    """Waits for the start, and breaks it off when the node is to stop; whether it is complete."""
    waiting: list[asyncio.Future[Any]] = [starting, stopping]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if starting.cancelled():
        return False
    starting.result()
    return True


def _tell_started(
    broker: Broker, sock: socket.socket, node: Processes, ready: Ready | None, took_s: float
) -> None:
    host, port = sock.getsockname()[:2]
    if ready is not None:
        exporter_address = None if node.exporter is None else str(node.exporter.address)
        ready(NodeInfo(broker.node_id, os.getpid(), host, port, exporter_address))
    emit(
        log,
        logging.INFO,
        "broker-started",
        node=broker.node_id,
        cluster=broker.cluster_id,
        host=host,
        port=port,
        version=__version__,
        seconds=took_s,
    )


async def _stop(broker: Broker, fatal: Callable[[Exception], None]) -> None:
    began_s = broker.loop.time()
    emit(log, logging.INFO, "node-stopping", node=broker.node_id)
    try:
        await broker.stop()
    except Exception as error:
        # Its threads may still be at work, and nobody would wait for them.
        fatal(error)
    emit(
        log,
        logging.INFO,
        "node-stopped",
        node=broker.node_id,
        seconds=broker.loop.time() - began_s,
    )

"""A node: the process that is a broker, its controller beside it.

Rules that it keeps (docs/architecture.md, decision 4):

* What the process is, `process.roles` says: a broker with its controller beside it, or only one of
  the two.
* The controller is forked before this process has a loop or a thread, and before it imports what
  only a broker needs (`serving`). Both live and die together:
  the kernel kills the controller when this process ends, and this process stops at once when its
  controller does.
* Whatever a person can put right (a port, a folder, a setting) is a `StartupError` with a sentence
  that says what to do, never a traceback.
* SIGTERM and SIGINT stop in order and exit with 0, also while the node is starting. A start that is
  broken off or refused ends whatever of it had begun.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from kraftpy import __version__
from kraftpy.core.config import BrokerConfig
from kraftpy.core.config.addresses import Listener as ListenerConfig
from kraftpy.core.metadata import MetadataState
from kraftpy.core.security.first_credentials import CredentialError
from kraftpy.events import emit
from kraftpy.metrics.channel import channel
from kraftpy.metrics.users import UsersError
from kraftpy.quorum.controller import ControllerSettings
from kraftpy.quorum.credentials import SECRET_NAME, Credentials, SecretUnusable, load_secret
from kraftpy.quorum.process import (
    CannotListenError,
    ControllerHandle,
    ControllerOptions,
    run_controller,
    spawn_controller,
)
from kraftpy.server.network.listener import bind
from kraftpy.server.network.tls_listeners import TlsListeners
from kraftpy.server.node.exporter_process import ExporterHandle, MetricsEndpoint
from kraftpy.server.node.exposure import tell_exposure
from kraftpy.server.node.first_user import read_file
from kraftpy.server.node.metrics_door import door_of
from kraftpy.server.node.page_login import PageSecurity
from kraftpy.server.node.quorum_tls import link_tls
from kraftpy.server.node.starting import Processes, Quorum, Ready, StartupError
from kraftpy.storage.checkpoints import read_meta_properties
from kraftpy.storage.clock import SettledClock
from kraftpy.storage.files import StorageError
from kraftpy.storage.manager import LogManager
from kraftpy.tls.settings import TlsError

if TYPE_CHECKING:
    from kraftpy.server.node.serving import Serve

log = logging.getLogger(__name__)

METADATA_FOLDER = "__cluster_metadata-0"


def run_node(config: BrokerConfig, *, ready: Ready | None = None) -> int:
    """Runs the node until SIGTERM or SIGINT; returns the exit code. Call it from the main thread.

    `ready` is called once clients are answered. Raises StartupError, ConfigError.
    """
    config.check_complete()
    roles = sorted(config.process_roles)
    emit(
        log,
        logging.INFO,
        "node-starting",
        node=config.node_id,
        version=__version__,
        roles=roles,
        dirs=config.data_dirs,
    )
    for notice in config.ignored:
        log.info("%s", notice)
    try:
        if "broker" not in config.process_roles:
            return _run_controller(config)
        return _run_broker(config, ready)
    except (StorageError, SecretUnusable, TlsError) as error:
        raise StartupError(str(error)) from error
    except CannotListenError as error:
        raise StartupError(
            f"{error.strerror}: choose another port, or an address of this machine, for the "
            "CONTROLLER entry of listeners"
        ) from error


def _make_metadata_folder(config: BrokerConfig) -> None:
    folder = _metadata_folder(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"can't use {folder}: {error.strerror}. Set metadata.log.dir (or the first of "
            "log.dirs) to a folder that this user can write to"
        ) from error


def _run_controller(config: BrokerConfig) -> int:
    _make_metadata_folder(config)
    metrics = _metrics_of(config)
    if metrics is None:
        return run_controller(_controller_options(config))
    own_end, other_end = channel()
    metrics.add("controller", os.getpid(), other_end)
    exporter = metrics.spawn()

    def on_loop(loop: asyncio.AbstractEventLoop) -> None:
        exporter.watch(loop)
        if exporter.has_tls:
            loop.add_signal_handler(signal.SIGHUP, exporter.reload)

    try:
        options = replace(_controller_options(config), metrics=own_end, on_loop=on_loop)
        return run_controller(options)
    finally:
        exporter.stop()


def _run_broker(config: BrokerConfig, ready: Ready | None) -> int:
    try:
        first_users = read_file(config)
    except CredentialError as error:
        raise StartupError(str(error)) from None
    TlsListeners(None, config)  # so that nothing has begun if a certificate can't be used
    sockets = [_listen(listener) for listener in config.broker_listeners]
    tell_exposure(config)
    metrics = _metrics_of(config)
    _raise_file_limit()
    # Before the fork: a folder that is in use is said as such, not met as the quorum's trouble.
    logs = LogManager(
        [Path(folder) for folder in config.data_dirs],
        config=config,
        cluster_id=_cluster_id(config),
        node_id=config.node_id,
        clock_ms=SettledClock(time.time, time.monotonic).now_ms,
    )
    controller: ControllerHandle | None = None
    exporter: ExporterHandle | None = None
    own_end: socket.socket | None = None
    try:
        if "controller" in config.process_roles:
            controller = _spawn_controller(config, metrics)
        if metrics is not None:
            own_end, other_end = channel()
            metrics.add("broker", os.getpid(), other_end)
            exporter = metrics.spawn()
        quorum = _quorum_of(config, controller)
        node = Processes(quorum, controller, exporter, own_end)
        serve = _import_broker()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config, sockets, logs, node, ready, first_users))
    finally:
        if exporter is not None:
            exporter.stop()
        if controller is not None:
            controller.stop()
        logs.release()


def _import_broker() -> Serve:
    """What a broker runs, which the processes beside it would have in memory for nothing.

    The controller starts meanwhile. Nobody looks through what is imported, nor copies its pages.
    """
    gc.disable()
    from kraftpy.server.node.serving import serve

    gc.freeze()
    gc.enable()
    return serve


def _raise_file_limit() -> None:
    """Every busy partition and every client is an open file; the soft limit is often just 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _cluster_id(config: BrokerConfig) -> str | None:
    """The cluster that the data folders belong to; None for new folders."""
    for folder in config.data_dirs:
        meta = read_meta_properties(Path(folder))
        if meta is not None:
            return meta.cluster_id
    return None


def _quorum_of(config: BrokerConfig, controller: ControllerHandle | None) -> Quorum:
    voters = {voter.id: (voter.host, voter.port) for voter in config.controller_quorum_voters or ()}
    if not voters:
        servers = config.controller_quorum_bootstrap_servers or ()
        voters = {-number: (host, port) for number, (host, port) in enumerate(servers, 1)}
    if controller is not None:
        if config.controller_quorum_voters is None:
            voters = {config.node_id: (controller.host, controller.port)}
        return Quorum(voters, controller.credentials)
    secret = load_secret(_secret_file(config), "", _metadata_folder(config), shared=True)
    return Quorum(voters, Credentials(secret, link_tls(config)))


def _metadata_folder(config: BrokerConfig) -> Path:
    return Path(config.metadata_dir) / METADATA_FOLDER


def _secret_file(config: BrokerConfig) -> Path | None:
    name = config.kraftpy_quorum_secret_file
    return Path(name) if name else None


def _controller_options(config: BrokerConfig) -> ControllerOptions:
    listeners = config.controller_listeners
    return ControllerOptions(
        metadata_dir=_metadata_folder(config),
        voter_id=config.node_id,
        machine_type=MetadataState,
        host=(listeners[0].host or "0.0.0.0") if listeners else "127.0.0.1",  # noqa: S104 - as configured
        port=listeners[0].port if listeners else 0,
        voters={voter.id: (voter.host, voter.port) for voter in config.voters},
        settings=ControllerSettings.of(config),
        secret_file=_secret_file(config),
        tls=link_tls(config),
        force_vote=config.kraftpy_quorum_force_vote,
    )


def _spawn_controller(config: BrokerConfig, metrics: MetricsEndpoint | None) -> ControllerHandle:
    _make_metadata_folder(config)
    end, other_end = channel() if metrics is not None else (None, None)
    handle = spawn_controller(replace(_controller_options(config), metrics=end))
    if metrics is not None and end is not None and other_end is not None:
        end.close()
        metrics.add("controller", handle.pid, other_end)
    return handle


def _metrics_of(config: BrokerConfig) -> MetricsEndpoint | None:
    address = config.kraftpy_metrics_listener
    if address is None:
        return None
    dirs = config.data_dirs if "broker" in config.process_roles else [config.metadata_dir]

    def secure() -> PageSecurity:
        """In the exporter, when the secret is there."""
        return PageSecurity(config, _secret_file(config) or _metadata_folder(config) / SECRET_NAME)

    try:
        return MetricsEndpoint(config.node_id, address, dirs, door_of(config), secure)
    except UsersError as error:
        raise StartupError(str(error)) from None
    except OSError as error:
        raise StartupError(
            f"can't serve metrics on {address}: {error.strerror}. Choose another port for "
            "kraftpy.metrics.listener (0: any free one), or leave it empty"
        ) from error


def _listen(listener: ListenerConfig) -> socket.socket:
    try:
        return bind(listener.host, listener.port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise StartupError(
                f"can't listen on {listener.host or '*'}:{listener.port}: {error.strerror}. Use an "
                "address of this machine in listeners (ip address shows them)"
            ) from error
        raise StartupError(
            f"can't listen on {listener.host or '*'}:{listener.port}: {error.strerror}. Stop the "
            "program that uses the port (ss -ltnp shows it), or choose another one: "
            f"listeners={listener.name}://{listener.host}:PORT, or kraftpy dev --port PORT (0: any)"
        ) from error

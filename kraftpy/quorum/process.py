"""The controller process: the quorum's voter, its journal and its listener, beside the broker.

`spawn_controller` starts it as a child of a broker (`process.roles=broker,controller`);
`run_controller` is the whole process on its own (`process.roles=controller`).

Rules:

* The fork happens before the parent has a loop or a thread, so the child inherits imported modules
  and nothing else; it starts in a few milliseconds.
* A quorum of one voter is a `single.SingleVoter`; one of several is a Raft voter, which the others
  reach through the same listener as the brokers do.
* The parent binds the listening socket, so a client's connection attempt can't come too early and
  port 0 is known to both.
* Both halves live and die together: the kernel kills the child when the parent is gone, and
  `ControllerHandle.watch` tells the parent, which then has to stop itself.
* Fail-stop: a failed write or fsync, a damaged file, or an exception where none is foreseen ends
  the process with one log line and the exit code that `ExitCode` documents.
* SIGTERM and SIGINT stop it in order. A child ignores both, and is stopped by `_STOP_SIGNAL`: they
  may reach the whole process group, and the broker still needs its controller to shut down.
* One process uses the folder at a time (`.lock`); a predecessor that is just dying gets
  `LOCK_TIMEOUT_S` to let go of the folder and of the port.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from kraftpy import __version__, events
from kraftpy.core.metadata import LaterReleaseError
from kraftpy.events import emit
from kraftpy.frozen import dataclass
from kraftpy.quorum.controller import ControllerSettings
from kraftpy.quorum.credentials import Credentials, LinkTls, load_secret
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.forking import become_child, ignore_group_signals, log_fds
from kraftpy.quorum.journal import JournalDamagedError, JournalFailedError, JournalFullError
from kraftpy.quorum.listener import Listener
from kraftpy.quorum.numbers import answer_metrics
from kraftpy.quorum.port import MachineType
from kraftpy.quorum.replica import SNAPSHOT_INTERVAL_BYTES
from kraftpy.quorum.single import SingleVoter
from kraftpy.quorum.snapshot import SnapshotDamagedError, SnapshotFullError, SnapshotVersionError
from kraftpy.quorum.voter import VotersChangedError

if TYPE_CHECKING:
    from kraftpy.quorum.raft import RaftVoter

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 2.0
GC_THRESHOLDS = 2_500, 4, 2_500
"""Small young collections, so that each is short (0.5 ms where 10,000 partitions are created, and
none while records are produced). A small middle generation, too: what a request of 1 MiB makes
lives for long enough to get there, and going through 2.5 million objects took 89 ms at once. And
few of the old: the metadata is large, long-lived and free of cycles, and going through it for a
fence of a broker with 30,000 partitions would double the time for which nobody gets an answer."""
_RETRY_S = 0.01
_STOP_SIGNAL = signal.SIGUSR1
"""The parent's to its child, and to nobody else."""


class ExitCode(IntEnum):
    """How a controller process ends; the numbers are those of sysexits.h."""

    STOPPED = 0
    DATA_DAMAGED = 65
    BUG = 70
    DISK_FULL = 73
    DISK_FAILED = 74
    FOLDER_IN_USE = 75
    RELEASE_TOO_OLD = 76


class FolderInUseError(Exception):
    """Another process holds the folder's lock; says what to look for."""


@dataclass(frozen=True)
class ControllerOptions:
    """What a controller needs to know.

    `metadata_dir` belongs to it alone. `host` and `port` (0: any free one) are its listener's.
    `tls` is for the connections to it and to the other voters.
    `voters` says where each voter is reached, this one included; empty if it's the only one.
    `snapshot_interval_bytes` is Kafka's `metadata.log.max.record.bytes.between.snapshots`.
    `force_vote`: a voter with an empty folder votes, whatever it may have confirmed before.
    `metrics` is the end of a `metrics.channel` at which it is asked for its numbers. `on_loop` is
    called with the event loop once it runs.
    """

    metadata_dir: Path
    voter_id: int
    machine_type: MachineType
    settings: ControllerSettings
    host: str = "127.0.0.1"
    port: int = 0
    voters: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    secret_file: Path | None = None
    tls: LinkTls | None = None
    snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES
    files: FileLayer = field(default_factory=FileLayer)
    force_vote: bool = False
    metrics: socket.socket | None = None
    on_loop: Callable[[asyncio.AbstractEventLoop], None] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether there are other voters."""
        return len(self.voters) > 1


class ControllerHandle:
    """The parent's view of its controller process."""

    def __init__(self, pid: int, host: str, port: int, credentials: Credentials) -> None:
        self.pid = pid
        self.host = host
        self.port = port
        self.credentials = credentials
        self.exit_code: int | None = None
        """An `ExitCode`, or minus a signal's number; None while it runs (see `poll`)."""
        self._pidfd = os.pidfd_open(pid)
        self._loop: asyncio.AbstractEventLoop | None = None

    def poll(self) -> int | None:
        """Updates and returns `exit_code` without waiting."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended(status)
        return self.exit_code

    def watch(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[int], None]) -> None:
        """Calls `on_exit(exit_code)` on `loop` when the process has ended for whatever reason."""

        def ended() -> None:
            if self.poll() is not None:
                assert self.exit_code is not None
                on_exit(self.exit_code)

        if self.exit_code is not None:
            loop.call_soon(ended)
            return
        self._loop = loop
        loop.add_reader(self._pidfd, ended)

    def stop(self, timeout_ms: int = 5_000) -> int:
        """Stops it in order, or kills it after `timeout_ms`; returns the exit code.

        Blocks; call it when the loop has nothing else to do. No `on_exit` is called.
        """
        self._unwatch()
        deadline = time.monotonic() + timeout_ms / 1000
        if self.poll() is None:
            os.kill(self.pid, _STOP_SIGNAL)
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._ended(os.waitpid(self.pid, 0)[1])
        assert self.exit_code is not None
        return self.exit_code

    def _ended(self, status: int) -> None:
        self.exit_code = os.waitstatus_to_exitcode(status)
        self._unwatch()
        os.close(self._pidfd)

    def _unwatch(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._pidfd)
            self._loop = None


def spawn_controller(options: ControllerOptions) -> ControllerHandle:
    """Starts a controller process as a child of this one.

    Call it from the main thread before there is a loop or another thread. Raises `SecretUnusable`
    or `CannotListenError`. What goes wrong later, a damaged journal for
    instance, the child logs before it ends: see `ControllerHandle.watch`.
    """
    credentials = _credentials(options)
    listening = _bind(options.host, options.port)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code: int = ExitCode.BUG
        try:
            keep = [listening.fileno(), *log_fds()]
            if options.metrics is not None:
                keep.append(options.metrics.fileno())
            become_child(parent, "kraftpy-quorum", keep)
            ignore_group_signals()
            code = _run(options, listening, credentials)
        except BaseException:
            logger.critical("the controller failed to start", exc_info=True)
        finally:
            logging.shutdown()
            os._exit(code)
    port = listening.getsockname()[1]
    listening.close()
    return ControllerHandle(pid, options.host, port, credentials)


def run_controller(options: ControllerOptions) -> int:
    """Be a controller process until SIGTERM or SIGINT; returns the exit code.

    Raises `SecretUnusable` or `CannotListenError` as `spawn_controller` does.
    """
    credentials = _credentials(options)
    return _run(options, _bind(options.host, options.port), credentials)


def _credentials(options: ControllerOptions) -> Credentials:
    secret = load_secret(
        options.secret_file, options.host, options.metadata_dir, shared=options.is_shared
    )
    return Credentials(secret, options.tls)


class CannotListenError(OSError):
    """The address of the quorum's listener can't be had; says which and why."""


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket, waiting for a predecessor on a fixed port to be gone."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        listening = socket.socket(family, kind, proto)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise _cannot_listen(host, port, error) from None
        time.sleep(_RETRY_S)


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListenError:
    message = f"the quorum can't listen on {host}:{port}: {error.strerror}"
    return CannotListenError(error.errno, message)


def _lock(folder: Path) -> int:
    """Takes the folder for this process; returns the descriptor that holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise FolderInUseError(
                    f"another controller uses {folder} (it holds {folder / '.lock'}); stop it, or "
                    "give this node a folder of its own"
                ) from None
        time.sleep(_RETRY_S)


def _run(options: ControllerOptions, listening: socket.socket, credentials: Credentials) -> int:
    """Runs to the end and turns what ended it into an exit code with one log line."""
    try:
        lock = _lock(options.metadata_dir)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_serve(options, listening, credentials))
        finally:
            os.close(lock)
    except FolderInUseError as error:
        logger.critical("%s", error)
        return ExitCode.FOLDER_IN_USE
    except (
        JournalDamagedError,
        SnapshotDamagedError,
        SnapshotVersionError,
        VotersChangedError,
    ) as error:
        logger.critical("the controller does not start: %s", error)
        return ExitCode.DATA_DAMAGED
    except LaterReleaseError as error:
        logger.critical("the controller does not start: %s", error)
        return ExitCode.RELEASE_TOO_OLD
    except JournalFullError as error:
        logger.critical("the controller does not start: %s", error)
        return ExitCode.DISK_FULL
    except (JournalFailedError, OSError) as error:
        logger.critical(
            "the controller does not start: %s. Check the disk, and that this user may read and "
            "write %s and what is in it",
            error,
            options.metadata_dir,
        )
        return ExitCode.DISK_FAILED


async def _serve(
    options: ControllerOptions, listening: socket.socket, credentials: Credentials
) -> int:
    gc.set_threshold(*GC_THRESHOLDS)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_unforeseen)
    events.flush_with(events.calls_on(loop))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(_STOP_SIGNAL, stopped.set)
    host, port = listening.getsockname()[:2]
    quorum = _back_end(options, (host, port), credentials)
    listener = Listener(quorum, credentials, options.settings)
    await listener.start(listening)
    if options.metrics is not None:
        answer_metrics(options.metrics, quorum, loop)
    if options.on_loop is not None:
        options.on_loop(loop)
    emit(
        logger,
        logging.INFO,
        "controller-started",
        voter=quorum.voter_id,
        term=quorum.term,
        index=quorum.applied_index,
        host=host,
        port=port,
        version=__version__,
    )
    await stopped.wait()
    began_s = loop.time()
    await quorum.transfer_leadership()
    listener.close()
    quorum.stop()
    seconds = loop.time() - began_s
    emit(logger, logging.INFO, "controller-stopped", voter=quorum.voter_id, seconds=seconds)
    events.flush()
    return ExitCode.STOPPED


def _back_end(
    options: ControllerOptions, address: tuple[str, int], credentials: Credentials
) -> SingleVoter | RaftVoter:
    if not options.is_shared:
        host, port = options.voters.get(options.voter_id, address)
        return SingleVoter(
            options.metadata_dir,
            options.voter_id,
            options.machine_type,
            _fatal,
            address=(host, port or address[1]),
            files=options.files,
            snapshot_interval_bytes=options.snapshot_interval_bytes,
        )
    from kraftpy.quorum.raft import RaftVoter  # a node by itself needs no pysyncobj

    return RaftVoter(
        options.metadata_dir,
        options.voter_id,
        options.voters,
        credentials,
        options.machine_type,
        _fatal,
        files=options.files,
        snapshot_interval_bytes=options.snapshot_interval_bytes,
        forced=options.force_vote,
    )


def _fatal(error: Exception) -> None:
    """Ends the process now: nothing that it would still do can be trusted."""
    if isinstance(error, JournalFailedError | OSError):
        logger.critical("stopping the controller: %s; check the disk", error)
        code = ExitCode.DISK_FAILED
    elif isinstance(error, JournalFullError | SnapshotFullError):
        logger.critical(
            "stopping the controller, the other voters go on: %s. Make space and start this node "
            "again",
            error,
        )
        code = ExitCode.DISK_FULL
    elif isinstance(error, LaterReleaseError):
        logger.critical("stopping the controller: %s", error)
        code = ExitCode.RELEASE_TOO_OLD
    else:
        logger.critical("stopping the controller after an unforeseen error", exc_info=error)
        code = ExitCode.BUG
    logging.shutdown()
    os._exit(code)


def _unforeseen(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler: a connection's trouble ends it; any other ends the process."""
    error = context.get("exception")
    if "transport" in context or "protocol" in context:
        transport = context.get("transport")
        address = None if transport is None else transport.get_extra_info("peername")
        emit(
            logger,
            logging.ERROR,
            "connection-closed",
            peer=f"{address[0]}:{address[1]}" if address else "?",
            client=None,
            reason=f"{context['message']}: {error!r}",
        )
    else:
        _fatal(error if isinstance(error, Exception) else RuntimeError(context["message"]))

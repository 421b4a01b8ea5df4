"""kraftpy in builds that benchmarks alone start: `python -m tests.bench.builds BUILD server`.

* `switched`: SIGUSR1 takes out what the hot path does for metrics, whole functions and single
  statements of others, and SIGUSR2 puts it back; which of the two holds is in the file that SWITCH
  names (`switch` waits for it);
* `sliced`: each process that answers the exporter notes, in the folder that SLICES names, for each
  answer the longest slice of work that it did for that, by the clock and in CPU time (`slices_s`
  reads them);
* `answering`: a commit of offsets gets the answer to an earlier one of its size on the connection,
  and isn't read; what is left is the loop, the sockets and the framing;
* `relaying`: as `answering`, once the commit has been sent to two other nodes and each has sent a
  short frame back, as replication does: commits that come while one is under way go together;
* `committing`: commits of offsets are decoded, written to a file, kept and answered by one
  function; no group is looked at, nothing is checked, counted or replicated;
* `lagging`: a broker notes in the file that LAGS names the longest slice of work on its event loop
  since the last SIGUSR1, by the clock and in CPU time (`lags_s` reads it, `forget_lags` begins
  anew).
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import signal
import socket
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from types import CodeType, FunctionType
from typing import Any, cast

from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns, build_offset_batch
from kraftpy.metrics.channel import Responder
from kraftpy.metrics.instruments import Histogram, Traffic
from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import OffsetCommitResponse
from kraftpy.server.broker import Broker
from kraftpy.server.network.connection import Connection
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.replication.partition import Partition

SLICES = "KRAFTPY_BENCH_SLICES"
SWITCH = "KRAFTPY_BENCH_SWITCH"
LAGS = "KRAFTPY_BENCH_LAGS"
TICK_S = 0.001
SWITCH_TIMEOUT_S = 10.0

# No API has this key. What comes back is about as long as a follower's next fetch.
_PASSED_ON = 0x7FFF
_ECHO = Struct(">i96x").pack(96)
_API_KEY = Struct(">h")
_CORRELATION_ID = slice(4, 8)  # of a request
_INT32 = Struct(">i")
# They do nothing else.
_WHOLE = (
    Dispatcher.handled,
    Dispatcher._answered_late,
    Traffic.read,
    Histogram.observe,
)
# Their statements for metrics are those that mention one of these names; how many there are.
_PARTS = (
    (Dispatcher.dispatch, {"last_route", "count_errors"}, 3),
    (Dispatcher._defer, {"count_errors"}, 2),
    (Connection._consume, {"total"}, 5),
    (Connection._unblock, {"perf_counter"}, 1),
    (Partition.append, {"untimed", "_untimed"}, 2),
)


class _Without(ast.NodeTransformer):
    """Drops the statements that mention one of `names`.

    Of an `if` about one its body is left, of an addition to one what would be added.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.dropped = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.If) and self._mentioned(node.test):
            self.dropped += 1
            return self.generic_visit(ast.Module(node.body, [])).body  # type: ignore[attr-defined]
        if isinstance(node, ast.AugAssign) and self._mentioned(node.target):
            self.dropped += 1
            return ast.Expr(node.value)
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and body is None and self._mentioned(node):
            self.dropped += 1
            return None
        node = self.generic_visit(node)
        if body == []:
            body.append(ast.Pass())
        return node

    def _mentioned(self, node: ast.AST) -> bool:
        found = {getattr(each, "id", getattr(each, "attr", None)) for each in ast.walk(node)}
        return not self._names.isdisjoint(found)


def _without(function: FunctionType, names: set[str], statements: int) -> CodeType:
    """The function's code less its statements for metrics; AssertionError if there are others."""
    tree, strip = ast.parse(textwrap.dedent(inspect.getsource(function))), _Without(names)
    tree = ast.fix_missing_locations(strip.visit(tree))
    assert strip.dropped == statements, f"{function.__qualname__} has changed: adapt _PARTS"
    flags = annotations.compiler_flag
    built: dict[str, Any] = {}
    exec(compile(tree, inspect.getfile(function), "exec", flags, True), {}, built)
    code: CodeType = built[function.__name__].__code__
    return code


def _nothing(*_: Any) -> None:
    pass


def switched() -> None:
    """Takes out what the hot path does for metrics, and puts it back."""
    bare: dict[Any, CodeType] = dict.fromkeys(_WHOLE, _nothing.__code__)
    for function, names, statements in _PARTS:
        assert isinstance(function, FunctionType)
        bare[function] = _without(function, names, statements)
    stock = {function: function.__code__ for function in bare}
    state = Path(os.environ[SWITCH])

    def become(number: int, _: Any) -> None:
        # Code and not functions: connections hold bound methods.
        for function, code in (stock if number == signal.SIGUSR2 else bare).items():
            function.__code__ = code
        state.write_text(str(number))

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, become)


def switch(pid: int, state: Path, *, counting: bool) -> None:
    """Switches the counting of a `switched` broker on or off; returns when it is."""
    number = signal.SIGUSR2 if counting else signal.SIGUSR1
    os.kill(pid, number)
    deadline = time.monotonic() + SWITCH_TIMEOUT_S
    while not state.exists() or state.read_text() != str(number.value):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} doesn't heed {number.name}")
        time.sleep(0.001)


def sliced() -> None:
    """Notes the longest slices."""
    folder = Path(os.environ[SLICES])
    work = Responder._work
    longest_s = longest_cpu_s = 0.0

    def timed(self: Responder) -> None:
        nonlocal longest_s, longest_cpu_s
        started_at, cpu_s = time.perf_counter(), time.thread_time()
        work(self)
        took_s, cpu_s = time.perf_counter() - started_at, time.thread_time() - cpu_s
        longest_s, longest_cpu_s = max(took_s, longest_s), max(cpu_s, longest_cpu_s)
        if self._frames is None and self._unsent is None:
            with (folder / f"{os.getpid()}").open("a") as file:
                file.write(f"{longest_s} {longest_cpu_s}\n")
            longest_s = longest_cpu_s = 0.0

    Responder._work = timed  # type: ignore[method-assign]


def slices_s(folder: Path) -> list[list[tuple[float, float]]]:
    """For each process the longest slices of its answers: (by the clock, in CPU time)."""
    return [
        [(float(clock), float(cpu)) for clock, cpu in map(str.split, path.read_text().splitlines())]
        for path in folder.iterdir()
    ]


def bare_commit(
    frame: memoryview, kept: dict[tuple[str, str], OffsetRun], now_ms: int
) -> tuple[bytes, bytes]:
    """Takes a commit on: the batch to be written, and the frame of the answer."""
    header, position = codec.decode_request_header(frame)
    request = codec.decode_request(ApiKey.OFFSET_COMMIT, header.api_version, frame, position)
    runs, topics = [], []
    for topic in request.topics:
        partitions = [each.partition_index for each in topic.partitions]
        run = OffsetRun(
            request.group_id,
            topic.name,
            partitions,
            [each.committed_offset for each in topic.partitions],
            [each.committed_leader_epoch for each in topic.partitions],
            [now_ms] * len(partitions),
        )
        runs.append(run)
        kept[request.group_id, topic.name] = run
        answers = list(map(OffsetCommitResponse.OffsetCommitResponsePartition, partitions))
        topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(topic.name, partitions=answers)
        )
    batch = build_offset_batch(OffsetRuns(runs), now_ms)
    assert batch is not None
    answer = b"".join(
        codec.encode_response(
            ApiKey.OFFSET_COMMIT,
            header.api_version,
            header.correlation_id,
            OffsetCommitResponse(topics=topics),
        )
    )
    return batch, _INT32.pack(len(answer)) + answer


def _take_commits(take: Callable[[Dispatcher, Connection, memoryview], None]) -> None:
    """Has this done with commits of offsets, and with frames that are passed on."""
    dispatch = Dispatcher.dispatch

    def dispatch_or_take(self: Dispatcher, connection: Connection, frame: memoryview) -> int:
        (key,) = _API_KEY.unpack_from(frame)
        if key == ApiKey.OFFSET_COMMIT:
            take(self, connection, frame)
        elif key == _PASSED_ON:
            connection.respond([_ECHO])
        else:
            return dispatch(self, connection, frame)
        return 0

    Dispatcher.dispatch = dispatch_or_take  # type: ignore[method-assign]


def committing() -> None:
    """Commits offsets in one function, and writes them to a file that nobody reads."""
    kept: dict[tuple[str, str], OffsetRun] = {}
    fd, path = tempfile.mkstemp(prefix="kraftpy-bench-")
    Path(path).unlink()

    def commit(_: Dispatcher, connection: Connection, frame: memoryview) -> None:
        batch, answer = bare_commit(frame, kept, int(time.time() * 1000))
        os.write(fd, batch)
        connection.respond([answer])

    _take_commits(commit)


class _Answers:
    """The answer to the first of a connection's commits of a size, for all of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Connection, int], bytes] = {}

    def answer_to(self, connection: Connection, frame: memoryview) -> bytes:
        known = self._known.get((connection, len(frame)))
        if known is None:
            _, known = bare_commit(frame, {}, 0)
            self._known[connection, len(frame)] = known
        return b"".join((known[:4], frame[_CORRELATION_ID], known[8:]))


def answering() -> None:
    """Repeats an earlier answer for each commit."""
    answers = _Answers()

    def repeat(_: Dispatcher, connection: Connection, frame: memoryview) -> None:
        connection.respond([answers.answer_to(connection, frame)])

    _take_commits(repeat)


class _Follower:
    """Another node that gets what is passed on, one frame at a time, and sends a short one back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, SWITCH_TIMEOUT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left_bytes = 0  # of the frame that comes back
        self._under_way: list[Callable[[], None]] = []
        self._next: list[tuple[bytes, Callable[[], None]]] = []
        loop.add_reader(self._sock.fileno(), self._on_readable)

    def pass_on(self, data: bytes, came_back: Callable[[], None]) -> None:
        """With what else waits, as soon as the frame before is back."""
        self._next.append((data, came_back))
        if not self._left_bytes:
            self._send()

    def _send(self) -> None:
        body = b"".join(data for data, _ in self._next)
        self._under_way = [came_back for _, came_back in self._next]
        self._next = []
        self._left_bytes = len(_ECHO)
        self._sock.sendall(
            _INT32.pack(_API_KEY.size + len(body)) + _API_KEY.pack(_PASSED_ON) + body
        )

    def _on_readable(self) -> None:
        self._left_bytes -= len(self._sock.recv(self._left_bytes))
        if not self._left_bytes:
            back, self._under_way = self._under_way, []
            if self._next:
                self._send()
            for came_back in back:
                came_back()


def relaying() -> None:
    """Passes each commit on to the other nodes; when it is back, repeats an earlier answer."""
    answers = _Answers()
    followers: list[_Follower] = []

    def relay(self: Dispatcher, connection: Connection, frame: memoryview) -> None:
        if not followers:
            broker = cast(Broker, self._broker)
            for node_id, other in broker.metadata.brokers.items():
                if node_id != broker.node_id:
                    endpoint = other.endpoints[0]
                    followers.append(_Follower(broker.loop, (endpoint.host, endpoint.port)))
        slot, answer = connection.defer(concurrent=False), answers.answer_to(connection, frame)
        left = len(followers)

        def came_back() -> None:
            nonlocal left
            left -= 1
            if not left:
                connection.complete(slot, [answer])

        data = bytes(frame)
        for follower in followers:
            follower.pass_on(data, came_back)

    _take_commits(relay)


def lagging() -> None:
    """Notes how long the loop of a broker is away from a timer that goes off all the time."""
    file = Path(os.environ[LAGS])
    start = Broker.start
    longest = [0.0, 0.0]

    def tell() -> None:
        file.with_suffix(".new").write_text(f"{longest[0]} {longest[1]}")
        file.with_suffix(".new").replace(file)

    def forget(*_: Any) -> None:
        longest[:] = 0.0, 0.0
        tell()

    async def watched(self: Broker, sockets: list[socket.socket]) -> None:
        await start(self, sockets)
        signal.signal(signal.SIGUSR1, forget)
        last = [time.perf_counter(), time.thread_time()]

        def tick() -> None:
            now = [time.perf_counter(), time.thread_time()]
            slices = [now[0] - last[0] - TICK_S, now[1] - last[1]]
            if slices[0] > longest[0] or slices[1] > longest[1]:
                longest[:] = map(max, longest, slices)
                tell()
            last[:] = time.perf_counter(), time.thread_time()
            self.loop.call_later(TICK_S, tick)

        tick()

    Broker.start = watched  # type: ignore[method-assign]


def lags_s(file: Path) -> tuple[float, float]:
    """The longest slice: by the clock, in CPU time."""
    clock, cpu = map(float, file.read_text().split())
    return clock, cpu


def forget_lags(pid: int, file: Path) -> None:
    """Begins anew; on return the slices before are forgotten."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + SWITCH_TIMEOUT_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} doesn't heed SIGUSR1")
        time.sleep(0.001)


def command(build: Callable[[], None], *args: str) -> list[str]:
    """The command line of kraftpy in this build."""
    return [sys.executable, "-m", __name__, build.__name__, *args]


BUILDS = {
    build.__name__: build for build in (switched, sliced, answering, relaying, committing, lagging)
}

if __name__ == "__main__":
    from kraftpy.cli import main

    BUILDS[sys.argv.pop(1)]()
    main()

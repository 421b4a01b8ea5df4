"""kraftpy in builds that benchmarks alone start: `python -m tests.bench.builds BUILD server`.

* `switched`: SIGUSR1 takes out what the hot path does for metrics, whole functions and single
  statements of others, and SIGUSR2 puts it back; which of the two holds is in the file that SWITCH
  names (`switch` waits for it);
* `sliced`: each process that answers the exporter notes, in the folder that SLICES names, for each
  answer the longest slice of work that it did for that, by the clock and in CPU time (`slices_s`
  reads them);
* `answering`, `relaying`, `committing`: commits of offsets get less than all that is done for them
  (`tests.bench.commit_builds`);
* `lagging`: a broker notes in the file that LAGS names the longest slice of work on its event loop
  since the last SIGUSR1, by the clock and in CPU time (`lags_s` reads it, `forget_lags` begins
  anew).
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from kraftpy.core.config.addresses import Address
from kraftpy.metrics.channel import Responder
from kraftpy.metrics.instruments import Histogram, Traffic
from kraftpy.server.broker import Broker
from kraftpy.server.network.connection import Connection
from kraftpy.server.network.dispatch import Dispatcher
from kraftpy.server.replication.partition import Partition
from tests.bench.commit_builds import answering, committing, relaying

SLICES = "KRAFTPY_BENCH_SLICES"
SWITCH = "KRAFTPY_BENCH_SWITCH"
LAGS = "KRAFTPY_BENCH_LAGS"
TICK_S = 0.001
SWITCH_TIMEOUT_S = 10.0

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


def lagging() -> None:
    """Notes how long the loop of a broker is away from a timer that goes off all the time."""
    file = Path(os.environ[LAGS])
    start = Broker.start
    longest = [0.0, 0.0]
    forgetting = [False]

    def forget(*_: Any) -> None:
        # A signal may come in the midst of `tick`, which alone writes the file.
        forgetting[0] = True

    async def watched(
        self: Broker, sockets: list[socket.socket], metrics: Address | None = None
    ) -> None:
        await start(self, sockets, metrics)
        signal.signal(signal.SIGUSR1, forget)
        last = [time.perf_counter(), time.thread_time()]

        def tick() -> None:
            now = [time.perf_counter(), time.thread_time()]
            slices = [now[0] - last[0] - TICK_S, now[1] - last[1]]
            if forgetting[0]:
                longest[:] = slices = [0.0, 0.0]
            if forgetting[0] or slices[0] > longest[0] or slices[1] > longest[1]:
                forgetting[0] = False
                longest[:] = map(max, longest, slices)
                file.with_suffix(".new").write_text(f"{longest[0]} {longest[1]}")
                file.with_suffix(".new").replace(file)
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

"""Figures, their budgets, and the tables that people read.

A figure is measured several times; its median is reported with its spread, because single runs on
a small machine swing by tens of percent. Floors and goals are those of the project's design.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.race import Raced

Values = dict[str, list[float]]
MISSED = "MISSES FLOOR"

# What bounds a figure (`ceiling`), as columns of the race's table.
CLIENT_ALONE = "client alone"
LOOP_ALONE = "loop alone"
BARE_COMMIT = "bare commit"
CEILINGS = (CLIENT_ALONE, LOOP_ALONE, BARE_COMMIT)


@dataclass(frozen=True)
class Figure:
    """One row. `floor` and `goal` bound the value itself, `ratio_*` the value over Kafka's.

    Where both have a floor, both have to be met, and the goal is the value's.
    """

    name: str
    unit: str
    more_is_better: bool = False
    floor: float | None = None
    goal: float | None = None
    ratio_floor: float | None = None
    ratio_goal: float | None = None

    def meets(self, value: float, bound: float) -> bool:
        return value >= bound if self.more_is_better else value <= bound


def _less(name: str, unit: str, floor: float | None = None, goal: float | None = None) -> Figure:
    return Figure(name, unit, False, floor, goal)


def _rate(name: str, ratio_floor: float, ratio_goal: float) -> Figure:
    return Figure(name, "MB/s", True, ratio_floor=ratio_floor, ratio_goal=ratio_goal)


def _per_second(name: str, unit: str, ratio_floor: float, ratio_goal: float) -> Figure:
    return Figure(name, unit, True, ratio_floor=ratio_floor, ratio_goal=ratio_goal)


_TRANSACTIONS = (
    *(
        _per_second(f"RF 3: transactions of {count}, {client}", "/s", 1.2, 3.0)
        for count in ("1 partition", "10 partitions")
        for client in ("librdkafka", "Java")
    ),
    _per_second("RF 3: transactions of 1 partition, 100 clients", "/s", 1.0, 1.5),
    *(
        Figure(f"RF 3: begin to seen by read_committed, {rank}", "ms", False, None, None, 1.0, 0.6)
        for rank in ("p50", "p99")
    ),
    *(
        _per_second(
            f"RF 3: kafka-producer-perf-test, {duration} ms transactions", "records/s", 1.0, 2.0
        )
        for duration in (10, 100, 1000)
    ),
    Figure("RF 3: kafka-producer-perf-test without transactions", "records/s", True),
    Figure("RF 3: kafka-producer-perf-test, 1000 ms transactions to none", "of 1", True, 0.9, 0.97),
    _per_second("RF 3: TransactionalMessageCopier", "records/s", 1.0, 1.5),
    _less("CPU of an idempotent 1 KiB batch", "µs"),
    _less("CPU of a transaction's first batch, leader and coordinator", "µs", 120, 70),
    _less("CPU of a later batch, more than an idempotent one", "µs", 2, 1),
    _less("CPU of a transaction's end, one partition", "µs"),
    _less("CPU of a marker", "µs", 40, 20),
    _less("memory of a transactional id", "bytes", 600, 350),
)

_SECURITY = (
    _rate("TLS 1.3: produce 1 KB, batch 131 KB", 1.0, 1.3),
    _rate("TLS 1.3: consume 1 KB", 1.0, 1.3),
    Figure("TLS 1.3: logins by SCRAM-SHA-256, P-256", "/s", True, 600, 1200, 1.0),
    _less("right to a topic, remembered", "µs", 1, 0.3),
    _less("right to a topic, first asked for at 1,000 ACLs", "µs", 25, 15),
    _less("TLS 1.3: latency at 200 msg/s while 500 clients reconnect, p99", "ms", 20, 8),
)

_COOPERATIVE = (
    *(
        Figure(
            f"{members} members on one partition, 5 ms a record, against one",
            "times",
            True,
            floor,
            goal,
        )
        for members, floor, goal in ((8, 7.6, 7.9), (32, 28, 31))
    ),
    *(
        Figure(
            f"range fetch, {size}, {members} members, per broker core", "MB/s", True, floor, goal
        )
        for size, floor, goal in (("100 B", 60, 100), ("1 KB", 400, 700))
        for members in (2, 8, 64)
    ),
    _less("CPU of a plain commit", "µs"),
    _less("a member's claim against a plain commit, CPU", "times", 1.6, 1.3),
    _less("memory of a range", "bytes", 24, 16),
    _less("memory of a cached record", "bytes", 20, 16),
    _less("load 1,000,000 claims", "s", 4, 2),
)

_LEASES = (
    _less("leases: acquire a run", "µs", 20, 10),
    _less("leases: acknowledge a run", "µs", 30, 15),
    _less("leases: a change is written", "µs"),
    _less("leases: 2,000, every second one finished", "KiB", 120, 80),
    _less("leases: acquire 2,000 single records at once", "ms", 5),
    _less("leases: acknowledge 2,000 single records at once", "ms", 5),
    _less("leases: acknowledge 4,000 records, each with a type of its own", "ms"),
    _less("leases: a change of 4,000 batches is written", "ms", 5),
    _less("share coordinator: takes in 4,000 batches", "ms", 5),
    _less("claims: 10,000 single ones are read", "ms", 5),
    _less("claims: 10,000 single records between them are leased", "ms", 5),
    _less("claims: 1,000 of these leases are said done", "ms", 5),
)

_MIRRORS = (
    *(
        figure
        for size in ("100 B", "1 KB")
        for figure in (
            Figure(f"mirror, {size}, 4 partitions", "records/s", True),
            _less(f"mirror, {size}, 4 partitions, its CPU", "µs/record"),
        )
    ),
    _less("mirror, delay of a single record", "ms"),
)

_SHARES = (
    *(
        _per_second(f"RF 3: share group, {members} on one partition, 1 KB", "records/s", 1.0, 1.5)
        for members in ("1 member", "8 members")
    ),
    Figure("RF 3: acknowledge to answer, p50", "ms", False, None, None, 1.0, 0.7),
    *(
        _less(f"RF 3: {which} killed, deliveries flow", "s", 2.0, 1.0)
        for which in ("leader", "share coordinator")
    ),
)

FIGURES = {
    figure.name: figure
    for figure in (
        _less("start: kraftpy dev, empty folder", "s"),
        _less("start", "s", 0.4, 0.2),
        _less("memory, idle", "MiB", 70, 45),
        _less("broker CPU per request, 1 KiB batch", "µs", 40, 20),
        _less("broker CPU per request, 16 KiB batch", "µs", 60, 30),
        _less("broker CPU per request, 128 KiB batch", "µs", 150, 90),
        _less("broker CPU per request, 1024 KiB batch", "µs", 900, 550),
        Figure("replayed produce, 1 KiB batch", "MB/s", True),
        Figure("replayed produce, 16 KiB batch", "MB/s", True),
        Figure("replayed produce, 128 KiB batch", "MB/s", True),
        Figure("replayed produce, 1024 KiB batch", "MB/s", True),
        _rate("produce 1 KB, batch 16 KB", 1.2, 2.0),
        _rate("produce 1 KB, batch 131 KB", 1.2, 2.0),
        _rate("produce 1 KB, batch 1 MB", 1.2, 2.0),
        _rate("produce 100 B, batch 131 KB", 1.2, 2.0),
        _rate("consume 1 KB", 1.0, 1.2),
        _rate("consume 100 B", 1.0, 1.2),
        Figure("fetch 1 MiB, raw reader", "GB/s", True),
        Figure("fetch 1 MiB, per broker core", "GB/s", True, 2.0, 4.0),
        Figure("latency at 200 msg/s, p50", "ms", ratio_floor=1.0, ratio_goal=0.7),
        Figure("latency at 200 msg/s, p99", "ms", ratio_floor=1.0, ratio_goal=0.7),
        *(
            figure
            for shape in ("1,000 groups x 1,000", "100,000 groups x 10", "1,000,000 groups x 1")
            for figure in (
                _less(f"committed offset, {shape}", "bytes", 64, 40),
                _less(f"committed offset, {shape}, dict of objects", "bytes"),
            )
        ),
        *(
            Figure(f"committed offsets {verb} in memory{what}", "/s", True)
            for verb in ("overwritten", "read")
            for what in ("", ", dict of objects")
        ),
        _less("committed offset, loaded", "bytes", 64, 40),
        _less("committed offset, loaded, dict of objects", "bytes"),
        _less("load 10,000,000 committed offsets", "s"),
        _less("load 10,000,000 committed offsets, dict of objects", "s"),
        *(
            figure
            for size in ("1 KB", "100 B")
            for figure in (
                Figure(f"compaction, {size}", "MB/s", True),
                _less(f"compaction, {size}: until clean", "s"),
                _less(f"compaction, {size}: before", "MiB"),
                _less(f"compaction, {size}: after", "MiB"),
            )
        ),
        *(
            _less(f"latency at 200 msg/s{when}, {percentile}", "ms")
            for when in (", no compaction", " beside compaction")
            for percentile in ("p50", "p99")
        ),
        _less("RF 3: start, kraftpy dev", "s", 1.5, 1.0),
        _less("RF 3: start", "s", 1.5, 1.0),
        _less("RF 3: memory of a node, idle", "MiB", 70, 45),
        *(
            _rate(f"RF 3: produce {what}, acks={acks}", 1.2, goal)
            for acks, goal in (("1", 2.0), ("all", 3.0))
            for what in (
                "1 KB, batch 16 KB",
                "1 KB, batch 131 KB",
                "1 KB, batch 1 MB",
                "100 B, batch 131 KB",
            )
        ),
        *(
            Figure(
                f"RF 3: latency at 200 msg/s, acks={acks}, {percentile}",
                "ms",
                ratio_floor=1.0,
                ratio_goal=0.7,
            )
            for acks in ("1", "all")
            for percentile in ("p50", "p99")
        ),
        _per_second("offset commits, 1 partitions a request", "requests/s", 1.2, 2.0),
        _per_second("offset commits, 100 partitions a request", "requests/s", 1.2, 2.0),
        _per_second("RF 3: offset commits, 1 partitions a request", "requests/s", 2.0, 5.0),
        _per_second("RF 3: offset commits, 100 partitions a request", "requests/s", 2.0, 10.0),
        *(
            Figure(
                f"{nodes}offset {verb}, {count} partitions a request{clients}", "requests/s", True
            )
            for nodes in ("", "RF 3: ")
            for verb in ("commits", "fetches")
            for count in (1, 100)
            for clients in ("", ", 8 clients")
            if (verb, clients) != ("commits", "")
        ),
        *(
            _less(f"{nodes}{what}, {protocol}", "s")
            for nodes in ("", "RF 3: ")
            for protocol in ("classic", "consumer")
            for what in ("50 members join", "one of 50 members leaves")
        ),
        *_TRANSACTIONS,
        *_SECURITY,
        *_COOPERATIVE,
        *_LEASES,
        *_SHARES,
        *_MIRRORS,
        _per_second("RF 3: create partitions", "/s", 2.0, 5.0),
        _less("RF 3: leader killed to next acknowledged write", "s", 2.0, 0.7),
        _less("quorum commit, p50", "ms", 3, 1),
        _less("quorum commit, p99", "ms"),
        _less("quorum commit at 100/s, p50", "ms"),
        Figure("quorum commits, 64 under way", "/s", True),
        Figure("RF 3: follower catches up", "MB/s", True),
        *(
            _less(f"{which} killed to next acknowledged write, {part}", "s", 2.0, 0.7)
            for which in ("partition leader", "quorum leader")
            for part in ("median", "longest")
        ),
    )
}


def number(value: float) -> str:
    """Three digits that say something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} [{number(min(values))}-{number(max(values))}]"


def verdict(figure: Figure, value: float, floor: float | None, goal: float | None) -> str:
    if floor is None or goal is None:
        return ""
    if figure.meets(value, goal):
        return "goal met"
    return "floor met" if figure.meets(value, floor) else MISSED


def bounds(floor: float | None, goal: float | None, unit: str = "") -> tuple[str, str]:
    low, high = ("" if bound is None else f"{bound:g}{unit}" for bound in (floor, goal))
    return low, high


def layout(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)


def bench_table(values: Mapping[str, list[float]]) -> str:
    rows = []
    for name, measured in values.items():
        figure = FIGURES[name]
        limits = bounds(figure.floor, figure.goal)
        judged = verdict(figure, median(measured), figure.floor, figure.goal)
        rows.append([name, spread(measured), figure.unit, *limits, judged])
    return layout(["", "median [spread]", "unit", "floor", "goal", ""], rows)


def _ratios(mine: list[float], other: list[float]) -> list[float]:
    return [a / b for a, b in zip(mine, other, strict=True)]


def race_rows(raced: Raced, peer: str = "Apache Kafka") -> list[list[str]]:
    """The table of a race, its header first; against whom, if not against Apache Kafka.

    Ratios are taken round by round, so that what slows the machine for a while slows both.
    """
    rows = [["", "kraftpy", peer, *CEILINGS, "ratio", "floor", "goal", ""]]
    for name, mine in raced.ours.items():
        figure, other = FIGURES[name], raced.theirs[name]
        ratios = _ratios(mine, other)
        value, floor, goal, unit = median(mine), figure.floor, figure.goal, f" {figure.unit}"
        if figure.ratio_floor is not None and figure.floor is None:
            value, floor, goal, unit = median(ratios), figure.ratio_floor, figure.ratio_goal, "x"
        judged = verdict(figure, value, floor, goal)
        if figure.floor is not None and figure.ratio_floor is not None:
            judged = judged if figure.meets(median(ratios), figure.ratio_floor) else MISSED
        ceilings = {each: raced.ceilings[each].get(name, []) for each in CEILINGS}
        if judged == MISSED:
            for each, values in ceilings.items():
                if values and not figure.meets(median(_ratios(values, other)), floor or 0.0):
                    judged = f"no more than {each}"
                    break
        limits = [spread(values) if values else "" for values in ceilings.values()]
        measured = [spread(mine), spread(other), *limits, f"{spread(ratios)}x"]
        rows.append([f"{name} ({figure.unit})", *measured, *bounds(floor, goal, unit), judged])
    return rows


def race_table(raced: Raced, peer: str = "Apache Kafka") -> str:
    header, *rows = race_rows(raced, peer)
    return layout(header, rows)


def race_markdown(raced: Raced) -> str:
    header, *rows = race_rows(raced)
    line = ["---", *["---:"] * (len(header) - 2), "---"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, line, *rows))


def compare_table(before: Values, after: Values) -> str:
    """A change counts as one only where the spreads of the two runs don't overlap."""
    rows = []
    for name in before.keys() & after.keys():
        figure, old, new = FIGURES[name], before[name], after[name]
        apart = min(new) > max(old) or max(new) < min(old)
        better = (median(new) > median(old)) == figure.more_is_better
        word = ("better" if better else "WORSE") if apart else "within the spread"
        if min(len(old), len(new)) < 2:
            word = "too few rounds to say"
        change = f"{median(new) / median(old):.2f}x"
        rows.append([name, spread(old), spread(new), figure.unit, change, word])
    order = list(FIGURES)
    rows.sort(key=lambda row: order.index(row[0]))
    return layout(["", "before", "after", "unit", "change", ""], rows)


def save(file: Path | None, client: str, **runs: Values) -> str:
    """The figures as JSON: `runs` maps who was measured to its values."""
    machine = {"machine": platform.machine(), "python": platform.python_version()}
    units = {name: dataclasses.asdict(figure) for name, figure in FIGURES.items()}
    text = json.dumps({"client": client, **machine, "figures": units, "runs": runs}, indent=1)
    if file is not None:
        file.write_text(text + "\n")
    return text


def load_run(file: Path) -> Values:
    """kraftpy's values out of a saved file."""
    values: Values = json.loads(file.read_text())["runs"]["kraftpy"]
    return values

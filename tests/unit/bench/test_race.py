"""A race is fair: both are up and warm, take turns, and the client's part is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import figures, groups, report, rows, transaction_rows
from tests.bench.ceiling import mock_broker
from tests.bench.figures import BARE_COMMIT, CLIENT_ALONE, LOOP_ALONE
from tests.bench.load import library
from tests.bench.race import (
    MEASURE_S,
    WINDOWS_MAX,
    Meter,
    Raced,
    Row,
    Starts,
    is_chosen,
    race,
    race_starts,
    warm_up,
)

FIGURE = "offset commits, 1 partitions a request"


class Entrant:
    """Does `speed` a second once it has worked for `cold_s`, and gets there step by step."""

    def __init__(self, name: str, speed: float, cold_s: float, told: list[tuple[str, str]]) -> None:
        self.name = name
        self.up = 0
        self._speed = speed
        self._cold_s = self._left_s = cold_s
        self._told = told

    @contextlib.contextmanager
    def row(self) -> Iterator[Meter]:
        self.up += 1
        yield self.meter
        self.up -= 1

    def meter(self, seconds: float) -> dict[str, float]:
        speed = self._speed * (1 - self._left_s / (self._cold_s + 1))
        self._left_s = max(0.0, self._left_s - seconds)
        self._told.append((self.name, "measures" if seconds >= MEASURE_S else "warms up"))
        return {FIGURE: speed}

    def start(self) -> float:
        self.up += 1
        self._told.append((self.name, "starts"))
        return 1.0

    def stop(self) -> None:
        self.up -= 1

    def log_tail(self) -> str:
        return f"the log of {self.name}"


def nothing(_: str) -> None:
    pass


def test_a_cold_path_is_warmed_before_it_is_measured_and_turns_alternate() -> None:
    told: list[tuple[str, str]] = []
    ours, theirs = Entrant("kraftpy", 100, 0, told), Entrant("Apache Kafka", 50, 9, told)
    row = Row((FIGURE,), Entrant.row)
    raced = race([row], ours, theirs, 5, nothing)
    assert raced.ours[FIGURE] == [100.0] * 5
    assert raced.theirs[FIGURE] == [50.0] * 5  # none of its cold seconds counts
    warming = [name for name, what in told if what == "warms up"]
    assert told[: len(warming)] == [(name, "warms up") for name in warming]
    assert warming.count("kraftpy") == 3
    assert warming.count("Apache Kafka") > 6
    turns = [name[0] for name, what in told if what == "measures"]
    assert "".join(turns) == "kAAkkAAkkA"


def test_both_are_prepared_while_either_is_measured() -> None:
    entrants = [Entrant(name, 1, 0, []) for name in ("kraftpy", "Apache Kafka")]
    seen = []

    @contextlib.contextmanager
    def on(entrant: Entrant) -> Iterator[Meter]:
        entrant.up += 1

        def meter(seconds: float) -> dict[str, float]:
            seen.append([each.up for each in entrants])
            return entrant.meter(seconds)

        yield meter
        entrant.up -= 1

    race([Row((FIGURE,), on)], *entrants, 2, nothing)
    assert {tuple(up) for up in seen} == {(1, 1)}
    assert [each.up for each in entrants] == [0, 0]


def test_what_bounds_a_row_takes_its_turns_too() -> None:
    told: list[tuple[str, str]] = []
    ours, theirs, loop = (Entrant(name, 1, 0, told) for name in ("kraftpy", "Apache Kafka", "loop"))
    row = Row((FIGURE,), Entrant.row, {LOOP_ALONE: loop.row})
    raced = race([row], ours, theirs, 2, nothing)
    assert raced.ceilings == {CLIENT_ALONE: {}, LOOP_ALONE: {FIGURE: [1.0, 1.0]}, BARE_COMMIT: {}}
    assert "".join(name[0] for name, what in told if what == "measures") == "kAllAk"


def test_a_path_that_swings_for_ever_is_given_up() -> None:
    values = iter(range(1, 100))
    assert not warm_up(lambda _: {FIGURE: 2.0 ** next(values)}, FIGURE)
    assert next(values) == WINDOWS_MAX + 1


def test_a_row_that_fails_costs_the_others_nothing() -> None:
    """A race takes an hour."""

    def on(entrant: Entrant) -> contextlib.AbstractContextManager[Meter]:
        raise TimeoutError("no leader")

    ours, theirs = (Entrant(name, 1, 0, []) for name in ("kraftpy", "Apache Kafka"))
    raced = race([Row(("start",), on), Row((FIGURE,), Entrant.row)], ours, theirs, 2, nothing)
    assert raced.ours == raced.theirs == {FIGURE: [1.0, 1.0]}
    (failure,) = raced.failures
    assert failure.startswith("start: no leader")
    assert "the log of kraftpy" in failure


def test_starts_are_taken_alone_and_not_on_a_new_folder() -> None:
    told: list[tuple[str, str]] = []
    ours, theirs = Entrant("kraftpy", 1, 0, told), Entrant("Apache Kafka", 1, 0, told)

    def memory(entrant: Entrant) -> float:
        assert (ours.up, theirs.up) in ((1, 0), (0, 1))
        return entrant.up * 40.0

    starts = Starts(rows.STARTS_OF_ONE, memory)
    raced = race_starts(starts, [lambda: ours, lambda: theirs], 5, nothing)
    assert raced.ours == raced.theirs == {"start": [1.0] * 5, "memory, idle": [40.0] * 5}
    assert len(told) == 2 * (1 + 5)


def test_every_row_has_figures_and_commits_have_floors_and_the_clients_own_rate() -> None:
    every = [*rows.for_one(), *rows.for_three(), *transaction_rows.rows()]
    names = [name for row in every for name in row.figures]
    assert len(names) == len(set(names))
    assert set(names) <= figures.FIGURES.keys()
    floors = {name: figures.FIGURES[name].ratio_floor for name in names}
    for partitions in groups.PARTITIONS:
        name = groups.offsets_figure("commits", partitions, 1)
        assert (floors[name], floors[f"RF 3: {name}"]) == (1.2, 2.0)
    commits = [row for row in every if is_chosen(row.figures, ["commits"])]
    assert len(commits) == 8
    assert all(CLIENT_ALONE in row.ceilings for row in commits) == bool(library())
    assert all(LOOP_ALONE in row.ceilings for row in commits)
    assert all(BARE_COMMIT in row.ceilings for row in commits)
    assert is_chosen(("start",), [])
    assert not is_chosen(("start",), ["commits"])


@pytest.mark.skipif(library() is None, reason="confluent-kafka without a librdkafka of its own")
def test_the_client_alone_commits_and_fetches() -> None:
    def topic(_: int) -> contextlib.nullcontext[str]:
        return contextlib.nullcontext("t")

    for verb in groups.VERBS:
        with (
            mock_broker("t", 100) as bootstrap,
            groups.offset_work(bootstrap, topic, lambda: None, verb, 100, 2) as rate,
        ):
            assert rate(0.05) > 0


def test_the_table_says_what_was_met_what_was_missed_and_what_the_client_bounds() -> None:
    hundred = "offset commits, 100 partitions a request"
    raced = Raced(
        {FIGURE: [130.0, 120.0, 140.0], hundred: [90.0], "start": [0.3]},
        {FIGURE: [100.0, 100.0, 100.0], hundred: [100.0], "start": [5.0]},
        {
            CLIENT_ALONE: {FIGURE: [900.0, 800.0, 950.0], hundred: [110.0]},
            LOOP_ALONE: {FIGURE: [500.0, 500.0, 500.0]},
            BARE_COMMIT: {},
        },
        [],
    )
    lines = figures.race_markdown(raced).splitlines()
    assert lines[2] == (
        "| offset commits, 1 partitions a request (requests/s) | 130 [120-140] | 100 [100-100] "
        "| 900 [800-950] | 500 [500-500] |  | 1.30 [1.20-1.40]x | 1.2x | 2x | floor met |"
    )
    assert lines[3].endswith("| 110 |  |  | 0.90x | 1.2x | 2x | no more than client alone |")
    assert lines[4].endswith("| 0.4 s | 0.2 s | floor met |")
    raced.ceilings[CLIENT_ALONE][hundred] = [200.0]
    assert figures.race_markdown(raced).splitlines()[3].endswith("| MISSES FLOOR |")
    raced.ceilings[BARE_COMMIT][hundred] = [119.0]
    assert figures.race_markdown(raced).splitlines()[3].endswith("| no more than bare commit |")


def test_a_document_takes_the_table_of_each_part_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "conditions", lambda: "a machine")
    document = tmp_path / "performance.md"
    places = [
        f"<!-- race, nodes {nodes}: begin -->\nold {nodes}\n<!-- race, nodes {nodes}: end -->\n"
        for nodes in (1, 3)
    ]
    document.write_text(f"before\n{places[0]}between\n{places[1]}after\n")
    raced = Raced.nothing()
    raced.ours["start"], raced.theirs["start"] = [1.0], [5.0]
    for _ in range(2):
        report.fill(document, "nodes 1", raced, "make race ROUNDS=1")
    text = document.read_text()
    assert text.startswith("before\n<!-- race, nodes 1: begin -->\n\n| ")
    filled = "\na machine\n\n`make race ROUNDS=1`\n\n<!-- race, nodes 1: end -->\nbetween\n"
    assert text.endswith(f"{filled}{places[1]}after\n")
    assert "old 1" not in text
    assert text.count("| start (s) |") == 1
    document.write_text(places[0])
    with pytest.raises(RuntimeError, match="race, nodes 3: begin"):
        report.place_in(document, "nodes 3")


def test_the_document_has_the_places() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "performance.md"
    for part in ("nodes 1", "nodes 3", "transactions", "security", "share"):
        assert "make race" in report.place_in(document, part)

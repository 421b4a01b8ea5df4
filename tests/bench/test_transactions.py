"""What is told of transactions comes from transactions that were committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import transaction_costs, transactions
from tests.bench.__main__ import TRANSACTIONS, asked, parts, raced_part, said
from tests.bench.ceiling import mock_broker
from tests.bench.figures import CLIENT_ALONE, FIGURES
from tests.bench.load import library
from tests.bench.measure import partitions_on
from tests.bench.transaction_costs import END, FIRST, IDEMPOTENT, LATER, MARKER, MEMORY
from tests.bench.transaction_rows import MANY_CLIENTS, rows
from tests.processes import Kraftpy, running

pytestmark = pytest.mark.usefixtures("started_from_scratch")  # memory and CPU time are measured


@pytest.mark.skipif(library() is None, reason="confluent-kafka without a librdkafka of its own")
def test_the_client_alone_commits() -> None:
    with (
        mock_broker("t", 2) as bootstrap,
        transactions.librdkafka(bootstrap, "t", 2, 2) as rate,
    ):
        assert rate(0.05) > 0


def test_a_node_says_what_each_step_of_a_transaction_costs_it_and_when_each_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_costs, "IDS", 20)
    monkeypatch.setattr(transaction_costs, "WIDE_IDS", 5)
    with (
        running(Kraftpy(tmp_path)) as node,
        partitions_on(node, 1) as narrow,
        partitions_on(node, transaction_costs.WIDE_PARTITIONS) as wide,
    ):
        measured = transaction_costs.cpu(node, narrow, wide)
        with transactions.until_seen(node.bootstrap, narrow) as times_ms:
            assert all(0 < each < 10_000 for each in times_ms(0.05))
    assert measured.keys() == {IDEMPOTENT, FIRST, LATER, END, MARKER}
    assert 0 < measured[IDEMPOTENT] < measured[FIRST]
    assert measured.keys() | {MEMORY} <= FIGURES.keys()


def test_ids_are_loaded_to_be_weighed() -> None:
    assert 100 < transaction_costs.memory_in_a_child(10_000) < 10_000


def test_transactions_are_a_part_of_the_race() -> None:
    assert raced_part(None, [TRANSACTIONS]) == TRANSACTIONS
    assert raced_part(3, []) == "nodes 3"
    assert raced_part(None, []) is None
    for nodes, words in ((3, [TRANSACTIONS]), (None, ["commits"])):
        with pytest.raises(RuntimeError, match="--only"):
            raced_part(nodes, words)
    for line in ("race transactions --rounds 3", "race --rounds 3 transactions --only Java"):
        options = asked(line.split())
        assert (options.mode, options.rounds) == ("race", 3)
        assert raced_part(options.nodes, [str(each) for each in options.files]) == TRANSACTIONS
    assert said(TRANSACTIONS, ["Java"]) == " ARGS='transactions --only Java'"
    assert said("nodes 1", []) == " ARGS='--nodes 1'"
    part = parts()[TRANSACTIONS]
    assert part.starts is None
    assert [row.figures for row in part.rows] == [row.figures for row in rows()]
    floors = {name: FIGURES[name].ratio_floor for row in rows() for name in row.figures}
    assert floors[MANY_CLIENTS] == 1.0
    clients = [row for row in rows() if "librdkafka" in row.figures[0]]
    assert [floors[row.figures[0]] for row in clients] == [1.2, 1.2]
    assert all(CLIENT_ALONE in row.ceilings for row in clients) == bool(library())

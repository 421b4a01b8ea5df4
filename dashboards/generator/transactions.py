"""Transactions: how many, how long, what holds back read_committed, and what doesn't end."""

from __future__ import annotations

from dashboards.generator.grafana import (
    CAUTION,
    COUNT,
    GREEN,
    ORANGE,
    PER_SECOND,
    RED,
    SECONDS,
    TOPIC,
    TROUBLE,
    Board,
    Row,
    graph,
    p99,
    quantiles,
    stat,
)

_REQUESTS = (
    'api=~"InitProducerId|AddPartitionsToTxn|AddOffsetsToTxn|TxnOffsetCommit|EndTxn'
    '|WriteTxnMarkers"'
)

_STATE = Row(
    "Now",
    [
        stat(
            "Open",
            "Transactions that are neither committed nor aborted yet.",
            COUNT,
            'sum(kraftpy_transactions{@,state="Ongoing"})',
        ),
        stat(
            "Preparing",
            "Transactions that are decided, and whose markers aren't all written.",
            COUNT,
            'sum(kraftpy_transactions{@,state=~"Prepare.*"})',
        ),
        stat(
            "Late",
            "Transactions that aren't over though their timeout is.",
            COUNT,
            "sum(kraftpy_transactions_late{@})",
            CAUTION,
        ),
        stat(
            "Oldest markers",
            "For how long the transaction waits for its markers that was decided first.",
            SECONDS,
            "max(kraftpy_transaction_markers_oldest_seconds{@})",
            ((GREEN, None), (ORANGE, 10), (RED, 30)),
        ),
        stat(
            "Hanging",
            "Partitions with a transaction that nobody ends: kraftpy transaction hanging.",
            COUNT,
            "sum(kraftpy_partitions_with_hanging_transactions{@})",
            TROUBLE,
        ),
        stat(
            "Transactional ids",
            "Those that coordinators remember.",
            COUNT,
            "sum(kraftpy_transactions{@})",
        ),
    ],
)

_ENDS = Row(
    "How transactions end",
    [
        graph(
            "Ended",
            "Transactions whose markers were all written: committed, aborted by their producer, "
            "timed out, or fenced by another producer with the same id.",
            PER_SECOND,
            (
                "sum by (result) (rate(kraftpy_transactions_ended_total{@}[$__rate_interval]))",
                "{{result}}",
            ),
            stacked=True,
        ),
        graph(
            "Duration",
            "From the first partition until all markers were written.",
            SECONDS,
            *quantiles("kraftpy_transaction_duration_seconds"),
        ),
        graph(
            "Decision and markers",
            "From the decision until all markers were written: what the brokers take of it.",
            SECONDS,
            *quantiles("kraftpy_transaction_markers_seconds"),
        ),
    ],
)

_READERS = Row(
    "What read_committed waits for",
    [
        graph(
            "Held back by topic",
            "Committed records behind an open transaction, in the partition with the most.",
            COUNT,
            (
                'max by (topic) (kraftpy_lso_lag_records{@,topic=~"$topic"})',
                "{{topic}}",
            ),
            width=12,
        ),
        graph(
            "Late and hanging",
            "Transactions whose timeout is over, by coordinator, and partitions with one that "
            "nobody ends, by leader.",
            COUNT,
            ("kraftpy_transactions_late{@}", "late, {{instance}}"),
            ("kraftpy_partitions_with_hanging_transactions{@}", "hanging, {{instance}}"),
            width=12,
        ),
    ],
)

_COORDINATORS = Row(
    "Coordinators",
    [
        graph(
            "Transactional ids by state",
            "Those of all coordinators.",
            COUNT,
            ("sum by (state) (kraftpy_transactions{@})", "{{state}}"),
            stacked=True,
        ),
        graph(
            "Transactional ids by coordinator",
            "How evenly they are spread.",
            COUNT,
            ("sum by (instance) (kraftpy_transactions{@})", "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Oldest markers by coordinator",
            "For how long the transaction waits that was decided first.",
            SECONDS,
            ("kraftpy_transaction_markers_oldest_seconds{@}", "{{instance}}"),
        ),
        graph(
            "Requests",
            "Of producers, and markers from coordinators, by API.",
            PER_SECOND,
            (
                "sum by (api) (rate(kraftpy_request_duration_seconds_count"
                f"{{@,{_REQUESTS}}}[$__rate_interval]))",
                "{{api}}",
            ),
            width=12,
        ),
        graph(
            "Slowest requests",
            "The 99th percentile by API.",
            SECONDS,
            p99("kraftpy_request_duration_seconds", "api", _REQUESTS),
            width=12,
        ),
        graph(
            "Verifications",
            "What coordinators answered to leaders that asked whether their partition is in a "
            "transaction. TRANSACTION_ABORTABLE and PRODUCER_FENCED are batches that came late.",
            PER_SECOND,
            (
                "sum by (result) "
                "(rate(kraftpy_transaction_verifications_total{@}[$__rate_interval]))",
                "{{result}}",
            ),
            width=24,
        ),
    ],
)

BOARD = Board(
    "kraftpy-transactions",
    "kraftpy: transactions",
    "How many transactions there are, how they end, and what holds back read_committed.",
    [_STATE, _ENDS, _READERS, _COORDINATORS],
    (TOPIC,),
)

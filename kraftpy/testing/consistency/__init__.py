"""Consistency tests in the manner of Jepsen: recorded histories, checkers, a report.

A workload's clients record what they do with a `HistoryWriter`; `check` reads it back and says
which promises were kept:

    from kraftpy.testing.consistency import HistoryReader, check

    outcome = check(HistoryReader("history.jsonl"))
    assert outcome.valid, [verdict for verdict in outcome.verdicts if not verdict.valid]

`kraftpy consistency check` does the same from the command line. Only the standard library is
needed, and nothing of the broker: a history of Apache Kafka is judged like one of kraftpy.
"""

from kraftpy.testing.consistency.history import (
    Header,
    HistoryError,
    HistoryReader,
    HistoryWriter,
)
from kraftpy.testing.consistency.suite import WORKLOADS, Outcome, check
from kraftpy.testing.consistency.verdicts import Finding, Verdict

__all__ = [
    "WORKLOADS",
    "Finding",
    "Header",
    "HistoryError",
    "HistoryReader",
    "HistoryWriter",
    "Outcome",
    "Verdict",
    "check",
]

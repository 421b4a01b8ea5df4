"""What Apache Kafka answers to wrong requests about transactions; kraftpy answers the same.

With kraftpy's broker: `tests/server/test_transaction_limits.py`.
"""

from __future__ import annotations

from pathlib import Path

from tests.apache_kafka import ApacheKafka
from tests.processes import running, split_address
from tests.server.bad_transactions import DIFFERENT, EXPECTED, Asker
from tests.server.wire import Wire


def test_wrong_requests(tmp_path: Path) -> None:
    with running(ApacheKafka(tmp_path)) as kafka, Wire(*split_address(kafka.bootstrap)) as wire:
        assert dict(Asker(wire).answers()) == EXPECTED | DIFFERENT

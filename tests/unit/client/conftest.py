"""Brokers that speak of transactions, and pauses that a test can wait for."""

from __future__ import annotations

import pytest

from kraftpy.client import cluster as cluster_module
from kraftpy.client import sender as sender_module
from kraftpy.client import transactions as transactions_module

from .transaction_peer import TransactionPeer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts are short."""
    monkeypatch.setattr(cluster_module, "RETRY_BACKOFF_MS", 1)
    monkeypatch.setattr(sender_module, "_RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(sender_module, "CONCURRENT_PAUSE_S", 0.001)
    monkeypatch.setattr(transactions_module, "CONCURRENT_PAUSE_S", 0.001)


@pytest.fixture(params=[False, True], ids=["first", "second"])
def peer(request: pytest.FixtureRequest) -> TransactionPeer:
    return TransactionPeer({"t": 2}, second_version=request.param)

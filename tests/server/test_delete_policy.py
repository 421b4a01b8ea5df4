"""A delete policy of one's own, on a node, and what becomes of one that is no good."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kraftpy.client import EARLIEST, Admin, Cluster, Producer, ProducerRecord
from kraftpy.client.offsets import list_offsets
from kraftpy.storage.deleting import process
from kraftpy.storage.deleting.policies import LogFacts
from kraftpy.storage.deleting.process import PolicyProcess, ReportedSegment
from kraftpy.storage.files import StorageError
from kraftpy.testing import Broker
from kraftpy.testing.process import BrokerError
from tests.waiting import wait_until

LOG = LogFacts("t", 0, 0, 200, -1, -1)
SEGMENTS = [ReportedSegment(0, 10, 100, 100, 1), ReportedSegment(10, 20, 100, 0, 2)]
POLICIES = '''
import time
from kraftpy.storage.deleting import DeletePolicy

class KeepOne(DeletePolicy):
    """Lets all go but of topics that are called keep."""

    def is_deletable(self, log, segment, now_ms):
        print("a line that is no answer")
        return log.topic != "keep"

class Hangs(DeletePolicy):
    def is_deletable(self, log, segment, now_ms):
        while True:
            pass

class Fails(DeletePolicy):
    def is_deletable(self, log, segment, now_ms):
        raise RuntimeError("no such day")

class NoPolicy:
    pass
'''


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "my_policies.py").write_text(POLICIES)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def answer(name: str) -> list[int]:
    policy = PolicyProcess(f"my_policies.{name}")
    policy.tell(LOG, SEGMENTS)
    policy.ask(1000)
    found: list[list[int]] = []

    def answered() -> bool:
        each = policy.poll()
        if each is not None:
            found.append(each)
        return each is not None

    wait_until(answered, "the policy's answer")
    assert not policy.busy
    return found[0]


def test_what_a_policy_prints_is_no_answer(path: Path) -> None:
    assert answer("KeepOne") == [2]


def test_a_policy_that_fails_deletes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "kraftpy.storage.deleting.process"):
        assert answer("Fails") == []
    assert "my_policies.Fails failed" in caplog.text
    assert "RuntimeError: no such day" in caplog.text


def test_a_policy_that_hangs_is_ended(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "TIMEOUT_S", 0.5)
    assert answer("Hangs") == []
    assert "it took more than 0.5 s" in caplog.text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my_policies.Nothing", "has no attribute 'Nothing'"),
        ("my_policies.NoPolicy", "no subclass of kraftpy.storage.deleting.DeletePolicy"),
        ("nowhere.Policy", "No module named 'nowhere'"),
    ],
)
def test_what_can_t_be_loaded_is_told_with_what_to_do(path: Path, name: str, why: str) -> None:
    with pytest.raises(StorageError) as caught:
        PolicyProcess(name).check()
    assert str(caught.value).startswith(f"kraftpy.delete.policy.class={name} can't be used: ")
    assert why in str(caught.value)
    assert "set PYTHONPATH" in str(caught.value)


async def test_a_node_deletes_what_its_policy_lets_go(path: Path) -> None:
    with Broker(
        kraftpy_delete_policy_class="my_policies.KeepOne",
        log_retention_check_interval_ms=100,
        internal_segment_bytes=2000,
        log_segment_delete_delay_ms=0,
    ) as broker:
        async with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
            for topic in ("keep", "go"):
                await Admin(cluster).create_topic(topic, partitions=1)
                for _ in range(12):
                    await producer.send_many([ProducerRecord(topic, b"x" * 1000)])
            start = 0
            while start < 10:
                start = (await list_offsets(cluster, {("go", 0): EARLIEST}))["go", 0]
            assert start < 12, "the newest segment isn't asked about"
            assert await list_offsets(cluster, {("keep", 0): EARLIEST}) == {("keep", 0): 0}


def test_a_node_whose_policy_can_t_be_loaded_doesn_t_start(path: Path) -> None:
    with pytest.raises(BrokerError, match="No module named 'nowhere'"):
        Broker(kraftpy_delete_policy_class="nowhere.Policy").start()

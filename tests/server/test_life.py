"""Starting and stopping: what is owed is answered, what can't be right is refused in a sentence."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from kraftpy.testing.broker import BrokerError
from tests.server.test_produce import batch, read_values
from tests.server.wire import Closed, Wire, fetch_request, produce

STOP_MAX_S = 4.0
EARLY_S = 0.2  # an answer takes a millisecond


def metadata(wire: Wire, topic: str) -> messages.MetadataResponse.MetadataResponseTopic:
    wanted = messages.MetadataRequest.MetadataRequestTopic(name=topic)
    return wire.call(ApiKey.METADATA, 9, messages.MetadataRequest([wanted])).topics[0]


def test_sigterm_answers_who_waits_and_leaves_a_clean_log() -> None:
    with Broker(group_initial_rebalance_delay_ms=60_000) as broker:
        with (
            Wire(broker.host, broker.port) as reader,
            Wire(broker.host, broker.port) as member,
            Wire(broker.host, broker.port) as wire,
        ):
            metadata(wire, "t")
            produce(wire, "t", batch(b"1"))
            wire.call(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest("g", 0))
            reader.send(ApiKey.FETCH, 12, fetch_request("t", 1, max_wait_ms=60_000))
            join = messages.JoinGroupRequest
            member.send(
                ApiKey.JOIN_GROUP,
                3,
                join(
                    group_id="g",
                    session_timeout_ms=30_000,
                    rebalance_timeout_ms=30_000,
                    protocol_type="consumer",
                    protocols=[join.JoinGroupRequestProtocol("range", b"")],
                ),
            )
            started = time.monotonic()
            os.kill(broker.pid, signal.SIGTERM)
            assert reader.receive(ApiKey.FETCH, 12)[1].error_code == 0
            joined = member.receive(ApiKey.JOIN_GROUP, 3)[1]
            assert joined.error_code == ErrorCode.NOT_COORDINATOR
            with pytest.raises(Closed):
                wire.receive_frame()
            deadline = started + STOP_MAX_S
            marker = broker.log_dir / ".kafka_cleanshutdown"
            while not marker.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            assert read_values(wire, "t") == [(0, b"1")]


def started_with(broker: Broker, patch: str) -> subprocess.Popen[str]:
    """The stopped broker as a process that first runs `patch`."""
    program = (
        "import asyncio, pathlib\n"
        "from kraftpy.protocol.errors import ErrorCode, KafkaError\n"
        "from kraftpy.server.cluster.membership import Membership\n"
        "from kraftpy.storage.manager import LogManager\n"
        "import kraftpy.cli.server as server\n"
        f"{patch}\n"
        f"server.command(['--config', {str(broker.config)!r}])\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.parametrize(
    ("register", "code"),
    [
        ("print('REGISTERING', flush=True); await asyncio.Event().wait()", 0),
        ("print(flush=True); raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)", 1),
    ],
    ids=["stopped", "refused"],
)
def test_a_start_that_is_broken_off_leaves_the_stop_before_it_clean(
    register: str, code: int
) -> None:
    """Else a cluster whose start is stopped forgets who of it has everything."""
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            metadata(wire, "t")
            produce(wire, "t", batch(b"1"))
        broker.stop()
        marker = broker.log_dir / ".kafka_cleanshutdown"
        left = marker.read_text()
        patch = f"async def register(*_, **__): {register}\nMembership.register = register"
        with started_with(broker, patch) as node:
            assert node.stdout is not None
            if node.stdout.readline() == "REGISTERING\n":
                node.send_signal(signal.SIGTERM)
            assert node.wait(STOP_MAX_S) == code
        assert marker.read_text() == left
        broker.start()
        assert not marker.exists()
        assert "not shut down cleanly" not in broker.log_path.read_text()
        with Wire(broker.host, broker.port) as wire:
            assert read_values(wire, "t") == [(0, b"1")]


def test_a_node_that_is_stopped_before_it_is_let_in_stops_cleanly() -> None:
    """In the name of the life that has registered: the quorum counts on no other any more."""
    with Broker() as broker:
        broker.stop()
        patch = (
            "async def unfence(self):\n"
            "    print('EPOCH', self.epoch, flush=True)\n"
            "    await asyncio.Event().wait()\n"
            "Membership.unfence = unfence"
        )
        with started_with(broker, patch) as node:
            assert node.stdout is not None
            epoch = int(node.stdout.readline().removeprefix("EPOCH "))
            node.send_signal(signal.SIGTERM)
            assert node.wait(STOP_MAX_S) == 0
        marker = json.loads((broker.log_dir / ".kafka_cleanshutdown").read_text())
        assert marker["brokerEpoch"] == epoch


def test_nobody_is_answered_before_the_broker_is_let_in() -> None:
    """Who asks that early would find no broker at all, which librdkafka tells as a failure."""
    with Broker() as broker:
        broker.stop()
        gate = broker.dir / "let in"
        patch = (
            "real = Membership.unfence\n"
            "async def unfence(self):\n"
            "    print(flush=True)\n"
            f"    while not pathlib.Path({str(gate)!r}).exists():\n"
            "        await asyncio.sleep(0.01)\n"
            "    await real(self)\n"
            "Membership.unfence = unfence"
        )
        with started_with(broker, patch) as node:
            try:
                assert node.stdout is not None
                node.stdout.readline()
                with Wire(broker.host, broker.port) as wire:
                    wire.send(ApiKey.METADATA, 9, messages.MetadataRequest([]))
                    assert select.select([wire.sock], [], [], EARLY_S)[0] == []
                    gate.touch()
                    brokers = wire.receive(ApiKey.METADATA, 9)[1].brokers
                assert [(each.host, each.port) for each in brokers] == [(broker.host, broker.port)]
            finally:
                node.send_signal(signal.SIGTERM)
            assert node.wait(STOP_MAX_S) == 0


def test_groups_are_coordinated_also_where_a_log_could_be_opened_only_later() -> None:
    def is_coordinated() -> bool:
        with Wire(broker.host, broker.port) as wire:
            beat = messages.HeartbeatRequest("g", 1, "nobody")
            error = wire.call(ApiKey.HEARTBEAT, 3, beat).error_code
        return error == ErrorCode.UNKNOWN_MEMBER_ID

    with Broker(offsets_topic_num_partitions=1) as broker:
        with Wire(broker.host, broker.port) as wire:
            wire.call(ApiKey.FIND_COORDINATOR, 3, messages.FindCoordinatorRequest("g", 0))
        broker.stop()
        disk_full = broker.dir / "disk full"
        disk_full.touch()
        patch = (
            "real = LogManager.get_or_create\n"
            "def get_or_create(self, topic, *given):\n"
            f"    if topic == '__consumer_offsets' and pathlib.Path({str(disk_full)!r}).exists():\n"
            "        print(topic, flush=True)\n"
            "        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)\n"
            "    return real(self, topic, *given)\n"
            "LogManager.get_or_create = get_or_create"
        )
        with started_with(broker, patch) as node:
            assert node.stdout is not None
            try:
                # At the start, when it is elected, and when it looks again.
                for _ in range(3):
                    assert node.stdout.readline() == "__consumer_offsets\n"
                assert not is_coordinated()
                disk_full.unlink()
                deadline = time.monotonic() + 10
                while not is_coordinated():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            finally:
                node.send_signal(signal.SIGTERM)
            assert node.wait(STOP_MAX_S) == 0


def test_lost_metadata_never_costs_records() -> None:
    with Broker() as broker:
        with Wire(broker.host, broker.port) as wire:
            metadata(wire, "t")
            produce(wire, "t", batch(b"precious"))
        broker.kill()
        (log_file,) = broker.log_dir.glob("t-0/*.log")
        before = log_file.read_bytes()
        (folder,) = broker.log_dir.glob("__cluster_metadata-0")
        saved = Path(shutil.move(folder, broker.dir / "saved"))
        with pytest.raises(BrokerError, match="the metadata log is empty"):
            broker.restart()
        assert log_file.read_bytes() == before
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(saved, folder)
        broker.restart()
        with Wire(broker.host, broker.port) as wire:
            assert read_values(wire, "t") == [(0, b"precious")]


def test_a_topic_that_cant_be_created_on_demand_says_why() -> None:
    with Broker(default_replication_factor=3) as broker, Wire(broker.host, broker.port) as wire:
        assert metadata(wire, "t").error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert metadata(wire, "no/such").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_damage_in_the_middle_of_a_log_is_refused_by_name() -> None:
    with Broker(log_flush_interval_messages=1) as broker:
        with Wire(broker.host, broker.port) as wire:
            metadata(wire, "t")
            for n in range(5):
                produce(wire, "t", batch(b"%d" % n * 100))
        broker.kill()
        (log_file,) = broker.log_dir.glob("t-0/*.log")
        data = bytearray(log_file.read_bytes())
        data[len(data) // 2] ^= 1
        log_file.write_bytes(data)
        with pytest.raises(BrokerError, match=str(log_file)):
            broker.restart()
        assert log_file.read_bytes() == data


def test_a_sigterm_in_the_middle_of_a_fork_is_heard(tmp_path: Path) -> None:
    """What a hook of a fork raises is ignored: the end can't hang on an exception."""
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        f"log.dirs={tmp_path / 'data'}\n"
    )
    program = (
        "import os, signal\n"
        "parent = os.getpid()\n"
        "os.register_at_fork(after_in_parent=lambda: os.kill(parent, signal.SIGTERM))\n"
        "from kraftpy.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "server", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr

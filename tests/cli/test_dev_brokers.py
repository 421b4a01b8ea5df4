"""`kraftpy dev --brokers N`: several nodes from one command, and what becomes of each."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from kraftpy.core.config import parse_properties
from kraftpy.testing.process import is_alive
from tests.waiting import wait_until

from .commands import Running, children, failure, output, run_command, running

DEV = ("dev", "-o", "json", "--port", "0")


def properties(broker: dict[str, Any]) -> dict[str, str]:
    return dict(parse_properties(Path(broker["config"]).read_text()))


def partition(topic: str, bootstrap: str) -> dict[str, Any]:
    """The first partition of a topic, as `topic describe` has it."""
    (found,) = json.loads(output("topic", "describe", topic, "-o", "json", bootstrap=bootstrap))
    first: dict[str, Any] = found["partitions"][0]
    return first


def all_in_sync(topic: str, bootstrap: str, count: int) -> bool:
    return len(partition(topic, bootstrap)["isr"]) == count


def test_three_brokers_with_a_quorum_of_three(tmp_path: Path) -> None:
    with running(*DEV, "--brokers", "3", "--dir", str(tmp_path)) as dev:
        ready = dev.ready()
        brokers = ready["brokers"]
        assert [broker["id"] for broker in brokers] == [1, 2, 3]
        assert ready["bootstrap"] == ",".join(broker["address"] for broker in brokers)
        settings = [properties(broker) for broker in brokers]
        assert [each["node.id"] for each in settings] == ["1", "2", "3"]
        assert {each["process.roles"] for each in settings} == {"broker,controller"}
        voters = settings[0]["controller.quorum.voters"].split(",")
        for each, voter in zip(settings, voters, strict=True):
            assert each["controller.quorum.voters"].split(",") == voters
            node_id, _, address = voter.partition("@")
            assert node_id == each["node.id"]
            assert f"CONTROLLER://{address}" in each["listeners"]
            assert each["default.replication.factor"] == "3"
            assert each["offsets.topic.replication.factor"] == "3"
            assert each["min.insync.replicas"] == "2"
            secret = Path(each["kraftpy.quorum.secret.file"])
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        output("produce", "t", stdin=b"one\n", bootstrap=ready["bootstrap"])
        assert sorted(partition("t", ready["bootstrap"])["replicas"]) == [1, 2, 3]
        for broker in brokers:  # every one answers for itself
            assert output("consume", "t", "-o", ":end", bootstrap=broker["address"]) == "one\n"


@pytest.mark.parametrize(
    ("count", "voters", "replicas", "in_sync"), [(2, 1, "2", "1"), (4, 3, "3", "2")]
)
def test_the_voters_are_one_or_three(count: int, voters: int, replicas: str, in_sync: str) -> None:
    with running(*DEV, "--brokers", str(count)) as dev:
        ready = dev.ready()
        settings = [properties(broker) for broker in ready["brokers"]]
        roles = [each["process.roles"] for each in settings]
        assert roles == ["broker,controller"] * voters + ["broker"] * (count - voters)
        for each in settings:
            assert len(each["controller.quorum.voters"].split(",")) == voters
            assert each["default.replication.factor"] == replicas
            assert each["min.insync.replicas"] == in_sync
        output("produce", "t", stdin=b"one\n", bootstrap=ready["bootstrap"])
        assert len(partition("t", ready["bootstrap"])["replicas"]) == int(replicas)


def test_a_killed_broker_stays_dead_until_server_brings_it_back(tmp_path: Path) -> None:
    with running(*DEV, "--brokers", "3", "--ephemeral", "--dir", str(tmp_path)) as dev:
        ready = dev.ready()
        bootstrap = ready["bootstrap"]
        output("produce", "t", stdin=b"before\n", bootstrap=bootstrap)
        leader = partition("t", bootstrap)["leader"]
        victim = ready["brokers"][leader - 1]
        node = [victim["pid"], *children(victim["pid"])]
        assert len(node) == 3  # broker, controller, metrics exporter

        os.kill(victim["pid"], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, node)), "all of the node is gone")
        said = dev.stderr_line()
        assert f"broker {leader} (pid {victim['pid']}) was killed by SIGKILL" in said
        assert f"kraftpy server --config {victim['config']}" in said

        output("produce", "t", stdin=b"meanwhile\n", bootstrap=bootstrap)
        assert partition("t", bootstrap)["leader"] != leader
        with running("server", "--config", victim["config"]) as server:
            wait_until(lambda: all_in_sync("t", bootstrap, 3), "it is in sync again")
            read = output("consume", "t", "-o", ":end", bootstrap=victim["address"])
            assert read == "before\nmeanwhile\n"
            assert server.end() == 0


def test_ctrl_c_stops_all_in_order(tmp_path: Path) -> None:
    with running(*DEV, "--brokers", "3", "--dir", str(tmp_path)) as dev:
        brokers = dev.ready()["brokers"]
        output("topic", "create", "t", "-p", "12", bootstrap=brokers[0]["address"])
        pids = [pid for each in brokers for pid in (each["pid"], *children(each["pid"]))]
        assert len(pids) == 9
        assert dev.end(signal.SIGINT) == 0
        assert not any(map(is_alive, pids))
        for broker in brokers:
            assert Path(broker["dir"], ".kafka_cleanshutdown").exists()


def test_all_nodes_die_with_dev() -> None:
    with running(*DEV, "--brokers", "3") as dev:
        brokers = dev.ready()["brokers"]
        pids = [pid for each in brokers for pid in (each["pid"], *children(each["pid"]))]
        dev.end(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), "all nodes have ended with dev")


def test_a_folder_keeps_the_cluster(tmp_path: Path) -> None:
    options = ("dev", "-o", "json", "--dir", str(tmp_path / "kafka"))
    with running(*options, "--port", "0", "--brokers", "3") as dev:
        first = dev.ready()
        output("produce", "t", stdin=b"kept\n", bootstrap=first["bootstrap"])
        assert dev.end() == 0
    said = failure(*options, "--brokers", "1", code=2)
    assert "holds a cluster of 3" in said
    with running(*options) as dev:
        second = dev.ready()
        assert second["bootstrap"] == first["bootstrap"]
        assert output("consume", "t", "-o", ":end", bootstrap=second["bootstrap"]) == "kept\n"
        said = failure(*options, code=4)
        assert f"another process runs the broker in {second['brokers'][0]['dir']}" in said


def test_a_folder_that_was_moved_keeps_the_cluster(tmp_path: Path) -> None:
    """Its files name where it was: it began anew there, without a word."""
    before, after = tmp_path / "before", tmp_path / "after"
    options = ("dev", "--port", "0", "-o", "json", "--dir")
    with running(*options, str(before), "--brokers", "3") as dev:
        output("produce", "t", stdin=b"kept\n", bootstrap=dev.ready()["bootstrap"])
        assert dev.end() == 0
    before.rename(after)
    with running(*options, str(after)) as dev:
        ready = dev.ready()
        assert output("consume", "t", "-o", ":end", bootstrap=ready["bootstrap"]) == "kept\n"
        assert all(str(after) in properties(broker)["log.dirs"] for broker in ready["brokers"])
        assert dev.end() == 0
    assert not before.exists()


def test_a_folder_gets_more_brokers(tmp_path: Path) -> None:
    options = ("dev", "-o", "json", "--dir", str(tmp_path / "kafka"))
    with running(*options, "--port", "0", "-c", "log.retention.hours=7") as dev:
        (first,) = dev.ready()["brokers"]
        output("produce", "t", stdin=b"kept\n", bootstrap=first["address"])
        assert dev.end() == 0
    with running(*options, "--brokers", "3") as dev:
        ready = dev.ready()
        assert ready["brokers"][0]["address"] == first["address"]
        settings = [properties(broker) for broker in ready["brokers"]]
        assert [each["process.roles"] for each in settings] == ["broker,controller"] + 2 * [
            "broker"
        ]
        for key in ("controller.quorum.voters", "kraftpy.quorum.secret.file"):
            assert len({each[key] for each in settings}) == 1
        for each in settings:
            assert each["log.retention.hours"] == "7"
            assert each["default.replication.factor"] == "3"
            assert each["min.insync.replicas"] == "2"
        output("produce", "u", stdin=b"new\n", bootstrap=ready["bootstrap"])
        assert partition("t", ready["bootstrap"])["replicas"] == [1]
        assert sorted(partition("u", ready["bootstrap"])["replicas"]) == [1, 2, 3]
        for broker in ready["brokers"]:
            assert output("consume", "t", "-o", ":end", bootstrap=broker["address"]) == "kept\n"
        output("cluster", "reassign", "-t", "t", "--watch", bootstrap=ready["bootstrap"])
        assert dev.end() == 0
    said = failure(*options, "--brokers", "2", code=2)
    assert "holds a cluster of 3" in said
    assert "decommission" in said


def started(dev: Running, line: str) -> dict[str, Any]:
    """The answer to a line on stdin."""
    dev.type(line.encode() + b"\n")
    return dev.ready()


def test_a_program_can_start_a_dead_broker_again(tmp_path: Path) -> None:
    options = (*DEV, "--brokers", "3", "--exit-on-eof", "--dir", str(tmp_path))
    with running(*options) as dev:
        ready = dev.ready()
        before = ready["brokers"][1]
        assert "has not ended" in started(dev, "start 2")["error"]
        os.kill(before["pid"], signal.SIGKILL)
        dev.stderr_line()
        after = started(dev, "start 2")
        assert after["pid"] != before["pid"]
        assert {**after, "pid": 0} == {**before, "pid": 0}
        assert output("topic", "list", "-o", "json", bootstrap=after["address"]) == "[]\n"

        os.kill(after["pid"], signal.SIGKILL)
        dev.stderr_line()
        host, _, port = after["address"].rpartition(":")
        with socket.create_server((host, int(port))):
            answer = started(dev, "start 2")
        assert answer["id"] == 2
        assert f"can't listen on {after['address']}" in answer["error"]
        assert run_command("topic", "list", bootstrap=ready["bootstrap"]).returncode == 0

        dev.type(b"stop 2\n")
        assert "`start ID` starts one of the brokers 1, 2, 3" in dev.stderr_line()


def test_settings_of_one_broker_and_of_all(tmp_path: Path) -> None:
    options = ("--brokers", "3", "--dir", str(tmp_path), "-c", "2:broker.rack=b")
    with running(*DEV, *options, "-c", "num.partitions=4") as dev:
        settings = [properties(broker) for broker in dev.ready()["brokers"]]
        assert [each.get("broker.rack") for each in settings] == [None, "b", None]
        assert {each["num.partitions"] for each in settings} == {"4"}
    said = failure(*DEV, "--brokers", "3", "-c", "log.dirs=/tmp/x", code=2)
    assert "log.dirs has to differ between the brokers" in said
    assert "there is no broker 4" in failure(*DEV, "--brokers", "3", "-c", "4:a=b", code=2)


def test_ephemeral_lies_in_memory_and_is_quick() -> None:
    with running(*DEV, "--brokers", "3", "--ephemeral") as dev:
        (*_, broker) = dev.ready()["brokers"]
        settings = properties(broker)
        assert settings["broker.session.timeout.ms"] == "3000"
        assert settings["offsets.topic.num.partitions"] == "5"
        assert Path(broker["dir"]).is_relative_to("/dev/shm") == os.access("/dev/shm", os.W_OK)
        assert dev.end() == 0
        assert not Path(broker["config"]).parent.parent.exists()


def test_a_node_that_cannot_start_takes_the_others_down(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        address = f"PLAINTEXT://127.0.0.1:{taken}"
        options = ("--brokers", "3", "--dir", str(tmp_path), "-c", f"3:listeners={address}")
        said = failure(*DEV, *options, "-c", "3:process.roles=broker", code=4)
    assert f"can't listen on 127.0.0.1:{taken}" in said
    with running("dev", "-o", "json", "--dir", str(tmp_path)) as dev:  # nothing was left running
        assert dev.ready()["brokers"][2]["address"] == f"127.0.0.1:{taken}"


def test_a_folder_that_takes_half_of_the_nodes_stays_new(tmp_path: Path) -> None:
    (tmp_path / "node2").touch()  # where a folder should be
    options = (*DEV, "--brokers", "3", "--dir", str(tmp_path))
    assert f"cannot write {tmp_path}/node2/server.properties" in failure(*options, code=4)
    (tmp_path / "node2").unlink()
    with running(*options) as dev:
        assert len(dev.ready()["brokers"]) == 3


def test_people_get_all_addresses_and_an_experiment() -> None:
    with running("dev", "--brokers", "3", "--port", "0") as dev:
        assert dev.stdout_line().startswith("kraftpy: 3 brokers are ready after ")
        dev.stdout_line()
        assert len(dev.stdout_line().split()[1].split(",")) == 3
        text = "".join(dev.stdout_line() + "\n" for _ in range(9))
        assert "kill -9" in text
        assert "kraftpy server --config" in text
        assert dev.end() == 0

"""`kraftpy dev` and `kraftpy server`: what they print, what survives, what they refuse."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from kraftpy.core.config import parse_properties
from kraftpy.testing.process import is_alive
from tests.waiting import wait_until

from .commands import children, failure, output, run_command, running


def test_json_line_describes_the_broker(tmp_path: Path) -> None:
    with running("dev", "-o", "json", "--port", "0", "--dir", str(tmp_path)) as dev:
        ready = dev.ready()
        (broker,) = ready["brokers"]
        assert set(broker) == {"id", "pid", "address", "dir", "config", "page", "metrics"}
        assert ready["bootstrap"] == broker["address"]
        with urlopen(broker["metrics"]) as answer:
            assert b"kraftpy_build_info" in answer.read()
        assert Path(broker["dir"], "meta.properties").exists()
        properties = parse_properties(Path(broker["config"]).read_text())
        assert properties["node.id"] == str(broker["id"])
        assert properties["process.roles"] == "broker,controller"
        assert properties["log.dirs"] == broker["dir"]
        assert f"PLAINTEXT://{broker['address']}" in properties["listeners"]
        assert output("topic", "list", "-o", "json", bootstrap=ready["bootstrap"]) == "[]\n"
        assert dev.end() == 0
        assert not is_alive(broker["pid"])


def test_people_get_the_address_and_something_to_try() -> None:
    with running("dev", "--port", "0") as dev:
        assert dev.stdout_line().startswith("kraftpy is ready")
        dev.stdout_line()
        bootstrap = dev.stdout_line().split()[1]
        folder = Path(dev.stdout_line().split()[1])
        assert folder.is_dir()
        text = "".join(dev.stdout_line() + "\n" for _ in range(8))
        assert f"kraftpy consume greetings -b {bootstrap}" in text
        assert dev.end(signal.SIGINT) == 0
        assert not folder.exists()


def test_a_killed_broker_stays_dead_until_server_brings_it_back() -> None:
    with running("dev", "-o", "json", "--port", "0") as dev:
        ready = dev.ready()
        bootstrap, (broker,) = ready["bootstrap"], ready["brokers"]
        output("produce", "t", stdin=b"before\n", bootstrap=bootstrap)
        node = [broker["pid"], *children(broker["pid"])]
        assert len(node) == 3  # broker, controller, metrics exporter

        os.kill(broker["pid"], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, node)), "all of the node is gone")
        said = dev.stderr_line()
        assert "was killed by SIGKILL" in said
        assert f"kraftpy server --config {broker['config']}" in said
        assert "no broker answers" in failure("topic", "list", code=3, bootstrap=bootstrap)

        with running("server", "--config", broker["config"]) as server:
            wait_until(
                lambda: run_command("topic", "list", bootstrap=bootstrap).returncode == 0,
                "the broker is back",
            )
            assert output("consume", "t", "-o", ":end", bootstrap=bootstrap) == "before\n"
            assert dev.end() == 0
            assert "another process runs broker 1" in dev.stderr_line()
            output("produce", "t", stdin=b"after\n", bootstrap=bootstrap)
            assert server.end() == 0
        assert Path(broker["config"]).exists()


def test_the_node_dies_with_dev() -> None:
    with running("dev", "-o", "json", "--port", "0") as dev:
        (broker,) = dev.ready()["brokers"]
        node = [broker["pid"], *children(broker["pid"])]
        dev.end(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, node)), "the node has ended with dev")


def test_dev_ends_when_its_stdin_does() -> None:
    with running("dev", "-o", "json", "--port", "0", "--exit-on-eof") as dev:
        (broker,) = dev.ready()["brokers"]
        assert dev.process.stdin is not None
        dev.process.stdin.close()
        assert dev.process.wait(30) == 0
        assert not is_alive(broker["pid"])
        assert not Path(broker["dir"]).exists()


def test_a_folder_keeps_data_address_and_edits(tmp_path: Path) -> None:
    options = ("dev", "-o", "json", "--dir", str(tmp_path / "kafka"))
    with running(*options, "--port", "0", "-c", "num.partitions=3") as dev:
        first = dev.ready()
        output("produce", "t", "-k", "a", stdin=b"kept\n", bootstrap=first["bootstrap"])
        assert dev.end() == 0
    with running(*options) as dev:
        second = dev.ready()
        assert second["bootstrap"] == first["bootstrap"]
        assert output("consume", "t", "-o", ":end", bootstrap=second["bootstrap"]) == "kept\n"
        described = output("topic", "describe", "t", bootstrap=second["bootstrap"])
        assert described.startswith("t: 3 partitions")


def test_another_port_is_picked_when_somebody_was_faster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        script = f"""
import sys
from kraftpy.cli import main, nodes
pick, picks = nodes._free_port, iter([{taken}])
nodes._free_port = lambda but: next(picks, None) or pick(but)
sys.argv = "kraftpy dev --port 0 -o json --exit-on-eof --dir".split() + [{str(tmp_path)!r}]
main()
"""
        done = subprocess.run(
            [sys.executable, "-c", script], input=b"", capture_output=True, timeout=30, check=True
        )
    (broker,) = json.loads(done.stdout)["brokers"]
    assert broker["address"] != f"127.0.0.1:{taken}"
    assert done.stderr == b""


def test_port_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = failure("dev", "--port", str(port), "--dir", str(tmp_path), code=4)
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said


def test_folder_not_writable() -> None:
    for folder in ("/proc/kraftpy", "/dev/null/kraftpy"):
        said = failure("dev", "--port", "0", "--dir", folder, code=4)
        assert f"cannot write {folder}/node1/server.properties" in said
        assert "--dir" in said


def test_data_folder_not_writable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    said = failure(
        "dev", "--port", "0", "--dir", str(tmp_path / "a"), "-c", f"log.dirs={file}/data", code=4
    )
    assert f"{file}/data" in said


def test_folder_in_use(tmp_path: Path) -> None:
    with running("dev", "-o", "json", "--port", "0", "--dir", str(tmp_path)) as dev:
        (broker,) = dev.ready()["brokers"]
        said = failure("dev", "--port", "0", "--dir", str(tmp_path), code=4)
        assert broker["dir"] in said


def test_folder_of_another_cluster(tmp_path: Path) -> None:
    with running("dev", "-o", "json", "--port", "0", "--dir", str(tmp_path)) as dev:
        (broker,) = dev.ready()["brokers"]
        dev.end()
    meta = Path(broker["dir"], "meta.properties")
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    said = failure("server", "--config", broker["config"], code=4)
    assert "7" in said
    assert broker["dir"] in said


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("num.partition=3", "did you mean num.partitions?"),
        ("num.partitions=0", "num.partitions=0: must be a whole number from 1"),
        ("zookeeper.connect=localhost:2181", "zookeeper.connect"),
    ],
)
def test_settings_that_cannot_be_used(setting: str, complaint: str, tmp_path: Path) -> None:
    said = failure("dev", "--port", "0", "--dir", str(tmp_path), "-c", setting, code=2)
    assert complaint in said
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=1\n{setting}\n")
    assert complaint in failure("server", "--config", str(file), code=2)


def test_server_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    said = failure("server", "--config", str(tmp_path / "none.properties"), code=2)
    assert f"cannot read {tmp_path}/none.properties: No such file or directory" in said


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"node.id=\xff", "not UTF-8"), (b"process.roles=broker\nnode.id=1", "controller.quorum")],
)
def test_server_names_what_is_wrong_in_the_file(
    content: bytes, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(content)
    assert complaint in failure("server", "--config", str(file), code=2)


def test_temporary_folder_goes_when_the_start_fails(tmp_path: Path) -> None:
    failure("dev", "--port", "0", "-c", "no.such.key=1", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_dies_at_start_shows_its_log(tmp_path: Path) -> None:
    options = ("dev", "-o", "json", "--dir", str(tmp_path))
    with running(*options, "--port", "0") as dev:
        (broker,) = dev.ready()["brokers"]
        dev.end()
    journal = Path(broker["dir"], "__cluster_metadata-0", "quorum.journal")
    journal.write_bytes(b"garbage" + journal.read_bytes())
    said = failure(*options, code=4)
    assert "broker 1 ended with exit code 1 before it was ready" in said
    assert "is damaged at byte 0" in said
    assert "node-failed node=1" in said.splitlines()[-1]
    assert "broker-started" not in said, "the log of an earlier run"


def test_a_bad_setting_is_not_kept_in_the_folder(tmp_path: Path) -> None:
    arguments = ("dev", "-o", "json", "--port", "0", "--dir", str(tmp_path))
    assert "no.such.key" in failure(*arguments, "-c", "no.such.key=1", code=2)
    with running(*arguments) as dev:
        config = Path(dev.ready()["brokers"][0]["config"])
        assert dev.end() == 0
    before = config.read_text()
    assert "log.retention.ms=soon" in failure(*arguments, "-c", "log.retention.ms=soon", code=2)
    assert config.read_text() == before

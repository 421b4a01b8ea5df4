"""What the image runs, on a node without an image: the variables and the starter scripts of
testcontainers' Kafka modules, as they stood in their sources in 2026.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kraftpy.cli import environment
from kraftpy.cli.environment import Given, given, ready_line, variable_of
from tests.processes import answers_metadata, free_port

from .commands import TIMEOUT_S

RUN = Path(__file__).parents[2] / "deploy" / "container" / "run"
LONG_MAX = 2**63 - 1
# By module: what it waits for in the output, its own variables, and its script.
COMMON = {
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}
KRAFT = {
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_LISTENERS": "PLAINTEXT://:{public},BROKER://:{broker},CONTROLLER://:{controller}",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,"
    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_NODE_ID": "1",
}
TRANSACTIONS = {
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(LONG_MAX),
}
EXPORT = (
    "export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{public},BROKER://localhost:{broker}\n"
)
CONFLUENT = ". {root}/etc/confluent/docker/bash-config\n{root}/etc/confluent/docker/configure\n"
MODULES = {
    "java": (
        ".*Transitioning from RECOVERY to RUNNING.*",
        {**COMMON, **KRAFT, **TRANSACTIONS},
        EXPORT + "{root}/etc/kafka/docker/run \n",
    ),
    "java, with a listener": (
        ".*Transitioning from RECOVERY to RUNNING.*",
        {
            **COMMON,
            **KRAFT,
            **TRANSACTIONS,
            "KAFKA_LISTENERS": KRAFT["KAFKA_LISTENERS"] + ",TC-0://localhost:{other}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": KRAFT["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]
            + ",TC-0:PLAINTEXT",
        },
        EXPORT.rstrip() + ",TC-0://localhost:{other}\n{root}/etc/confluent/docker/run \n",
    ),
    "go": (
        ".*Transitioning from RECOVERY to RUNNING.*",
        {
            **COMMON,
            **KRAFT,
            **TRANSACTIONS,
            "KAFKA_BROKER_ID": "1",
            "KAFKA_REST_BOOTSTRAP_SERVERS": "PLAINTEXT://0.0.0.0:9093",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:{controller}",
        },
        EXPORT + CONFLUENT + "{root}/etc/confluent/docker/launch\n",
    ),
    "python": (
        r".*\[KafkaServer id=\d+\] started.*",
        {
            **COMMON,
            "KAFKA_BROKER_ID": "1",
            "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:{public},BROKER://0.0.0.0:{broker}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000",
        },
        "export KAFKA_ZOOKEEPER_CONNECT='localhost:2181'\n"
        + EXPORT
        + CONFLUENT
        + "{root}/etc/confluent/docker/launch\n",
    ),
    "python, with_kraft": (
        ".*Kafka Server started.*",
        {**COMMON, **KRAFT, "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:{controller}"},
        EXPORT + CONFLUENT + "{root}/etc/confluent/docker/launch\n",
    ),
}


def root_of_the_image(root: Path) -> None:
    """What the Dockerfile's second stage puts where the modules' scripts look, below `root`."""
    text = (RUN.parents[1] / "Dockerfile").read_text().replace("\\\n", "")
    (line,) = re.findall(r"^RUN (mkdir -p /etc/kafka.*)$", text, re.MULTILINE)
    assert "COPY deploy/container/run /usr/local/bin/kraftpy-container" in text
    line = line.replace("/usr/local/bin/kraftpy-container", str(RUN))
    line = re.sub(r"(?<= )/etc/", f"{root}/etc/", line)
    subprocess.run(["sh", "-ec", line], check=True)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_testcontainers_starts_a_node(module: str, tmp_path: Path) -> None:
    """As the image's entry point gets it: a command that waits for the script, then runs it."""
    waits_for, variables, script = MODULES[module]
    ports = {name: free_port() for name in ("public", "broker", "controller", "other")}
    root_of_the_image(tmp_path)
    starter = tmp_path / "testcontainers_start.sh"
    starter.write_text("#!/bin/bash\n" + script.format(root=tmp_path, **ports))
    starter.chmod(0o777)
    given_ = {key: value.format(**ports) for key, value in variables.items()}
    waiting = ("sh", "-c", f"while [ ! -f {starter} ]; do sleep 0.1; done; {starter}")
    with image(tmp_path, {"KAFKA_LOG_DIRS": str(tmp_path / "data"), **given_}, *waiting) as line:
        assert re.match(waits_for, line), (tmp_path / "log").read_text()
        assert answers_metadata(f"127.0.0.1:{ports['public']}")
        assert (tmp_path / "data.secret").stat().st_mode & 0o077 == 0


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KAFKA_KRAFTPY_METRICS_LISTENER": "",
        **variables,
    }


@contextmanager
def image(folder: Path, variables: Mapping[str, str], *command: str) -> Iterator[str]:
    """What the image's entry point runs, and the first line that it prints; then it's stopped."""
    node = subprocess.Popen(
        [RUN, *command],
        env=environment_of(variables),
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("wb"),
        text=True,
        start_new_session=True,
    )
    try:
        assert node.stdout is not None
        yield node.stdout.readline()
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        node.wait(TIMEOUT_S)


def by_itself(folder: Path) -> dict[str, str]:
    controller = free_port()
    return {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{controller}",
        "KAFKA_LOG_DIR": str(folder / "volume"),
    }


def test_the_one_folder_that_is_named_has_the_data(tmp_path: Path) -> None:
    with image(tmp_path, by_itself(tmp_path)) as line:
        assert "Kafka Server started" in line, (tmp_path / "log").read_text()
        assert (tmp_path / "volume" / "meta.properties").exists()
        assert (tmp_path / "volume.secret").exists()


@pytest.mark.parametrize("where", ["KAFKA_CONTROLLER_QUORUM_VOTERS", "BOOTSTRAP_SERVERS"])
def test_a_broker_whose_controller_is_elsewhere_asks_for_their_secret(
    where: str, tmp_path: Path
) -> None:
    variables = by_itself(tmp_path) | {
        "KAFKA_PROCESS_ROLES": "broker",
        "KAFKA_NODE_ID": "2",
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0",
        "KAFKA_LOG_DIRS": str(tmp_path / "volume"),
    }
    if where == "BOOTSTRAP_SERVERS":
        voters = variables.pop("KAFKA_CONTROLLER_QUORUM_VOTERS")
        variables["KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS"] = voters.removeprefix("1@")
    done = subprocess.run(
        [RUN],
        env=environment_of(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert "it needs a shared secret" in done.stderr
    assert done.returncode != 0
    assert not (tmp_path / "volume.secret").exists()


def test_what_the_environment_says() -> None:
    found = given(
        {
            "PATH": "/bin",
            "KAFKA_LOG_DIRS": "/data",
            "KAFKA_LISTENER_NAME_TC___0_SSL_CLIENT_AUTH": "none",
            "KAFKA_NUM_NETWORK_THREADS": "3",
            "KAFKA_HEAP_OPTS": "-Xmx1G",
            "KAFKA_LOG_DRIS": "misspelt",
            "KAFKA_ZOOKEEPER_CONNECT": "localhost:2181",
        }
    )
    assert found == Given(
        {
            "log.dirs": "/data",
            "listener.name.tc-0.ssl.client.auth": "none",
            "num.network.threads": "3",
        },
        ["KAFKA_HEAP_OPTS", "KAFKA_LOG_DRIS", "KAFKA_ZOOKEEPER_CONNECT"],
    )
    for key in found.settings:
        assert environment._key_of(variable_of(key)) == key


def test_the_line_that_is_waited_for_is_one() -> None:
    for waits_for, _, _ in MODULES.values():
        assert re.match(waits_for, ready_line(12))


@pytest.mark.parametrize(
    ("variables", "code", "told"),
    [
        ({}, 2, "--config FILE"),
        ({"KAFKA_NODE_ID": "one"}, 2, "KAFKA_NODE_ID: node.id=one"),
        ({"KAFKA_HEAP_OPTS": "-Xmx1G"}, 2, "--config FILE"),
    ],
)
def test_an_environment_that_cannot_be_used(
    variables: dict[str, str], code: int, told: str
) -> None:
    rest = {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}
    command = [Path(sys.executable).with_name("kraftpy"), "server"]
    done = subprocess.run(
        command, env={**rest, **variables}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr

"""Apache Kafka, the reference: jars fetched by Maven, its broker and its tools run on 127.0.0.1.

The broker is of one release and the tools, with the Java client, of the one before.
KRAFTPY_TEST_KAFKA_VERSION names another one of the broker.

    python -m tests.apache_kafka COMMAND...

runs COMMAND with KRAFTPY_TEST_BOOTSTRAP set to the address of a fresh Apache Kafka.

The jars land in `.cache/kafka` of the checkout (git-ignored) and stay there. Needs Java 17 or
newer and Maven; `missing_tools` says in words what a machine lacks.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import programs
from tests.processes import Process, descendants, free_port, kill, running, tail
from tests.quorums import KraftpyQuorum, Quorum

VERSION = os.environ.get("KRAFTPY_TEST_KAFKA_VERSION") or "4.4.0"
# The tools and Streams of the newest release aren't on Maven Central: those of the one before talk
# to its broker.
TOOLS_VERSION = "4.3.0"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
JARS = CACHE / "kafka" / "jars"
BROKER_JARS = CACHE / "kafka" / f"broker-jars-{VERSION}"
STREAMS_JARS = CACHE / "streams" / "jars"
CONNECT_JARS = CACHE / "connect" / "jars"
OLD_CLIENT_VERSION = "0.10.2.2"
OLD_CLIENT_JARS = CACHE / "old-client" / "jars"


def _pom(*artifacts: str) -> str:
    """A project that depends on these (group:artifact:version), and on a place for log lines."""
    found = [
        name.split(":") for name in (*artifacts, "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")
    ]
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in found
    )
    return f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kraftpy.tests</groupId><artifactId>apache-kafka</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


# kafka-server-start's own flags; the heap is its default.
JVM = (
    "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
    " -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent"
    " -Djava.awt.headless=true"
)
# Tools live a second, and brokers of tests a minute: start fast rather than run fast.
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
TOOL_JVM = f"-Xmx512m {_QUICK}"
TEST_JVM = f"-Xmx1G {_QUICK}"

TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    # Programs of Kafka's system tests, without a script of their own.
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}


def missing_tools() -> list[str]:
    """What this machine lacks to run Apache Kafka, each with the Debian package that brings it."""
    return programs.missing(*programs.APACHE_KAFKA)


@functools.cache
def fetch_jars() -> Path:
    """Copy the jars of Kafka's tools and clients into the cache; returns their folder."""
    kafka = "org.apache.kafka"
    pom = _pom(f"{kafka}:kafka_2.13:{TOOLS_VERSION}", f"{kafka}:kafka-tools:{TOOLS_VERSION}")
    return fetch_jars_of(pom, JARS, f"the tools of Apache Kafka {TOOLS_VERSION}")


@functools.cache
def fetch_broker_jars() -> Path:
    """Copy the broker's jars into the cache unless they are there; returns their folder."""
    pom = _pom(f"org.apache.kafka:kafka_2.13:{VERSION}")
    return fetch_jars_of(pom, BROKER_JARS, f"Apache Kafka {VERSION}")


@functools.cache
def fetch_streams_jars() -> Path:
    """Copy the jars of Kafka Streams into the cache unless they are there; returns their folder."""
    pom = _pom(f"org.apache.kafka:kafka-streams:{TOOLS_VERSION}")
    return fetch_jars_of(pom, STREAMS_JARS, f"Kafka Streams {TOOLS_VERSION}")


@functools.cache
def fetch_connect_jars() -> Path:
    """Copy the jars of Kafka Connect, its file connectors, and MirrorMaker 2; their folder."""
    kafka = "org.apache.kafka"
    names = ("connect-runtime", "connect-file", "connect-mirror")
    pom = _pom(*(f"{kafka}:{name}:{TOOLS_VERSION}" for name in names))
    return fetch_jars_of(pom, CONNECT_JARS, f"Kafka Connect {TOOLS_VERSION}")


@functools.cache
def fetch_old_client_jars() -> Path:
    """Copy the jars of the last client from before record batches; returns their folder."""
    pom = _pom(f"org.apache.kafka:kafka-clients:{OLD_CLIENT_VERSION}")
    return fetch_jars_of(pom, OLD_CLIENT_JARS, f"the Java client {OLD_CLIENT_VERSION}")


def fetch_jars_of(pom_text: str, folder: Path, what: str) -> Path:
    """Copy the dependencies of a POM into `folder` unless they are there; returns it.

    Test processes that run side by side wait for the first of them: one fetches.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder.with_name(f"{folder.name}-complete-{what.rpartition(' ')[2]}")
        if not complete.exists():
            _copy_jars(pom_text, folder, what)
            complete.touch()
    return folder


def _copy_jars(pom_text: str, folder: Path, what: str) -> None:
    if missing := missing_tools():
        raise RuntimeError(f"{what} needs {' and '.join(missing)}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pom = folder.with_name("pom.xml")
    pom.write_text(pom_text)
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={folder}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Maven could not fetch {what}:\n{done.stdout[-2000:]}")


def archive_of(jars: Path) -> Path:
    """Where the classes of these jars lie as a JVM maps them, if they were ever put there."""
    return jars.with_suffix(".jsa")


def java(jars: Path, *words: str, jvm: str = TOOL_JVM, classes: Path | None = None) -> list[str]:
    """The command for a main class of these jars, or of the folder `classes`, with its arguments.

    Only what is to start fast maps the archive; one that another Java has made, or of other jars,
    is passed over without a word.
    """
    options = jvm.split()
    if jvm in (TOOL_JVM, TEST_JVM) and archive_of(jars).exists():
        options += [f"-XX:SharedArchiveFile={archive_of(jars)}", "-Xlog:cds*=off"]
    path = f"{jars}/*" if classes is None else f"{jars}/*:{classes}"
    return ["java", *options, "-cp", path, *words]


def run_tool(name: str, *args: str, stdin: str = "", timeout_s: float = 90) -> str:
    """Run one of Kafka's tools; returns its output. RuntimeError with its words if it fails."""
    command = java(fetch_jars(), TOOLS[name], *args)
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{name} {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


class ApacheKafka:
    """One node, broker and controller in one process, with Kafka's defaults, below `folder`.

    `settings` are the broker's, `_` standing for `.`.
    """

    name = f"Apache Kafka {VERSION}"
    jvm = TEST_JVM

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.log_dir = folder / "data"
        port, controller_port = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self._config = folder / "server.properties"
        self._process: Process | None = None
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def start(self) -> float:
        if not self.log_dir.exists():
            _format(self._config)
        command = _broker_command(self._config, self.jvm)
        self._process = Process(command, self.folder / "broker.log")
        return self._process.wait_answering(self.bootstrap)

    def pids(self) -> list[int]:
        assert self._process is not None
        return descendants(self._process.popen.pid)

    def kill(self) -> None:
        kill(self.pids())
        self.stop()

    def log_tail(self) -> str:
        return tail(self.folder / "broker.log")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class ApacheKafkaQuorum(Quorum):
    """Three nodes, broker and controller in one process each, with Kafka's defaults.

    `settings` are every broker's, `_` standing for `.`.
    """

    name = f"Apache Kafka {VERSION}"
    jvm = TEST_JVM

    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder)
        nodes = (1, 2, 3)
        controllers = {node: f"127.0.0.1:{free_port()}" for node in nodes}
        self.addresses = {node: f"127.0.0.1:{free_port()}" for node in nodes}
        self.log_dirs = {node: folder / f"data{node}" for node in nodes}
        for node in nodes:
            listeners = f"PLAINTEXT://{self.addresses[node]},CONTROLLER://{controllers[node]}"
            properties = {
                "process.roles": "broker,controller",
                "node.id": str(node),
                "controller.quorum.voters": ",".join(f"{i}@{a}" for i, a in controllers.items()),
                "controller.listener.names": "CONTROLLER",
                "listeners": listeners,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": str(self.log_dirs[node]),
                "default.replication.factor": "3",
                "min.insync.replicas": "2",
                "offsets.topic.replication.factor": "3",
                "transaction.state.log.replication.factor": "3",
                "transaction.state.log.min.isr": "2",
                "group.initial.rebalance.delay.ms": "0",
                **{name.replace("_", "."): str(value) for name, value in settings.items()},
            }
            lines = [f"{key}={value}\n" for key, value in properties.items()]
            self._config(node).write_text("".join(lines))
            _format(self._config(node))

    def _config(self, node: int) -> Path:
        return self.folder / f"server{node}.properties"

    def command(self, node: int) -> list[str]:
        return _broker_command(self._config(node), self.jvm)


def quorum_under_test(folder: Path, **settings: object) -> Quorum:
    """kraftpy's, or under `make reference` Apache Kafka's with these settings."""
    if os.environ.get("KRAFTPY_TEST_BOOTSTRAP"):
        return ApacheKafkaQuorum(folder, **settings)
    return KraftpyQuorum(folder)


class MeasuredApacheKafka(ApacheKafka):
    """As its own scripts start it."""

    jvm = JVM


class MeasuredApacheKafkaQuorum(ApacheKafkaQuorum):
    """As its own scripts start it."""

    jvm = JVM


def _broker_command(config: Path, jvm: str) -> list[str]:
    return java(fetch_broker_jars(), "kafka.Kafka", str(config), jvm=jvm)


def _format(config: Path) -> None:
    args = ("format", "-t", "A1b2C3d4E5f6G7h8I9j0KA", "-c", str(config))
    command = java(fetch_broker_jars(), "kafka.tools.StorageTool", *args)
    subprocess.run(command, check=True, capture_output=True)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    programs.require("Apache Kafka", *programs.APACHE_KAFKA)
    with (
        tempfile.TemporaryDirectory(prefix="apache-kafka-") as folder,
        running(ApacheKafka(Path(folder))) as kafka,
    ):
        environment = os.environ | {
            "KRAFTPY_TEST_BOOTSTRAP": kafka.bootstrap,
            "KRAFTPY_TEST_LOG_DIR": str(kafka.log_dir),
        }
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

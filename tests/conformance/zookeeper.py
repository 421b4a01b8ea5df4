"""A ZooKeeper server of its own for a test: Debian's jar, one process, a folder, a free port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from tests.processes import Process, free_port, kill

# Debian's package; the manifest names the jars that it needs.
JAR = Path("/usr/share/java/zookeeper.jar")
MISSING = f"ZooKeeper as {JAR} (apt-get install libzookeeper-java)"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_START_S = 30.0


class ZooKeeperServer:
    """A running server; `address` is where."""

    def __init__(self, command: list[str], log: Path, address: str) -> None:
        self.address = address
        self.client = KazooClient(
            address, timeout=10, connection_retry={"max_tries": -1, "max_delay": 0.1}
        )
        self._command = command
        self._log = log
        self._process = Process(command, log)

    def restart(self) -> None:
        """`kill -9`, and a start with what is on disk; returns when it answers."""
        kill([self._process.popen.pid])
        self._process.stop()
        self._process = Process(self._command, self._log)
        self.client.retry(self.client.exists, "/")

    def stop(self) -> None:
        self.client.stop()
        self.client.close()
        self._process.stop()

    def log_tail(self) -> str:
        return self._process.log_tail()

    def put(self, values: Mapping[str, str]) -> None:
        """Make nodes, or give those that are there another value."""
        for path, value in values.items():
            if self.client.exists(path):
                self.client.set(path, value.encode())
            else:
                self.client.create(path, value.encode(), makepath=True)

    def get(self, path: str) -> str:
        value, _ = self.client.get(path)
        return str(value.decode())


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeperServer]:
    """Start a server below a folder; ended by its process id whatever happens."""
    port = free_port()
    config = folder / "zoo.cfg"
    settings = {
        "tickTime": "500",
        "dataDir": str(folder / "data"),
        "clientPortAddress": "127.0.0.1",
        "clientPort": str(port),
        "admin.enableServer": "false",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = ["java", *_JVM, "-cp", str(JAR), _MAIN, str(config)]
    server = ZooKeeperServer(command, folder / "log", f"127.0.0.1:{port}")
    try:
        server.client.start(_START_S)
        yield server
    except server.client.handler.timeout_exception:
        raise AssertionError(f"ZooKeeper did not start:\n{server.log_tail()}") from None
    finally:
        server.stop()

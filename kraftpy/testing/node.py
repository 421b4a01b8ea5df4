"""A node of a test's cluster: where it is, and whether it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kraftpy.testing.process import is_alive


@dataclass(slots=True)
class Node:
    """One node of a `Cluster`.

    * `id`; `host`, `port` and `bootstrap`: its address for clients
    * `pid`: its broker process; `pids`: that and the node's others, as long as they live
    * `dir`: its folder; `log_dir`: the partitions, below it; `config`: its server.properties;
      `log_path`: what it logged
    * `own`: where it listens itself, which is elsewhere if requests of clients can be made to fail
    * `running`: it was not killed or stopped; `paused`
    """

    id: int
    host: str
    port: int
    pid: int
    log_dir: Path
    config: Path
    own: tuple[str, int]
    running: bool = True
    paused: bool = False

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def dir(self) -> Path:
        return self.config.parent

    @property
    def log_path(self) -> Path:
        return self.config.with_name("log")

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return not is_alive(self.pid)

    @property
    def pids(self) -> list[int]:
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return []
        return [self.pid, *map(int, children)]

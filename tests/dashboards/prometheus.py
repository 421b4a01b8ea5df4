"""A real Prometheus that scrapes a cluster and evaluates the shipped rules in minutes, not hours.

`shortened` is how: a minute becomes a second, so that what takes a quarter of an hour takes 15 s.
Ranges keep five scrapes at least, and what is to last lasts one. Thresholds stay as they are.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.dashboards.shipped import RULES
from tests.processes import free_port

FASTER = 60
SCRAPE_S = 1
RANGE_MIN_S = 5
FOR_MIN_S = 1
TIMEOUT_S = 30.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATIONS = (
    (re.compile(r"(?P<before>\[)(?P<value>\d+)(?P<unit>[smhd])(?=\])"), RANGE_MIN_S),
    (re.compile(r"(?P<before>\bfor: )(?P<value>\d+)(?P<unit>[smhd])\b"), FOR_MIN_S),
    (re.compile(r"(?P<before>\boffset )(?P<value>\d+)(?P<unit>[smhd])\b"), FOR_MIN_S),
)


def shortened(text: str) -> str:
    """Rules or an expression with durations that are 60 times as short."""
    for pattern, least in _DURATIONS:

        def shorter(found: re.Match[str], least: int = least) -> str:
            seconds = int(found["value"]) * _SECONDS[found["unit"]] / FASTER
            return f"{found['before']}{max(round(seconds), least)}s"

        text = pattern.sub(shorter, text)
    return text


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Alert(NamedTuple):
    """One that is pending or firing; `text` is what a person gets to read."""

    name: str
    state: str
    labels: dict[str, str]
    text: str


class Prometheus:
    """`with Prometheus(folder, {"kraftpy": ["host:port", ...]}) as prometheus`."""

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]]) -> None:
        self._folder = folder
        self._targets = targets
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        self._write_config()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.address}",
                    "--query.lookback-delta=10s",
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(TIMEOUT_S)
            self._process = None

    def _write_config(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        names = ("recording.yml", "alerts.yml")
        for name in names:
            (self._folder / name).write_text(shortened((RULES / name).read_text()))
        jobs = [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in self._targets.items()
        ]
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": list(names),
            "scrape_configs": jobs,
        }
        (self._folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=TIMEOUT_S):
                return True
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path} {parameters}: {error.read().decode()}") from error

    def query(self, expr: str) -> list[Sample]:
        """The samples as of now. RuntimeError if the expression is wrong."""
        data = self._get("query", query=expr)
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]

    def label_values(self, label: str, series: str) -> list[str]:
        """As Grafana fills a variable with label_values(series, label)."""
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return values

    def alerts(self) -> list[Alert]:
        """Those that are pending or firing."""
        return [
            Alert(
                each["labels"]["alertname"],
                each["state"],
                each["labels"],
                each["annotations"]["summary"],
            )
            for each in self._get("alerts")["alerts"]
        ]

    def firing(self) -> dict[str, str]:
        """The alerts that fire, each with the text of one of them."""
        return {alert.name: alert.text for alert in self.alerts() if alert.state == "firing"}

    def broken_rules(self) -> list[str]:
        """Rules that can't be evaluated, with the error."""
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
            if rule["health"] == "err"
        ]

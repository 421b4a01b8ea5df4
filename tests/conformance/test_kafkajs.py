"""kafkajs, the JavaScript client that is not built on librdkafka."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.apache_kafka import CACHE
from tests.clients.driver import T0_MS

SOURCE = Path(__file__).parent / "kafkajs"


@pytest.fixture(scope="session")
def project() -> Path:
    """A copy of the project with its dependencies installed, kept between runs."""
    folder = CACHE / "kafkajs"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "scenario.js"):
        shutil.copy(SOURCE / name, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return folder


def run_scenario(project: Path, bootstrap: str, topic: str) -> dict[str, Any]:
    command = ["node", "scenario.js", bootstrap, topic, str(T0_MS)]
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kafkajs(project: Path, bootstrap: str, topic: str) -> None:
    saw = run_scenario(project, bootstrap, topic)
    assert (saw["created"], saw["createdAgain"]) == (True, False)
    assert saw["watermarks"] == [[0, 20]]
    assert saw["atTime"] == ["5"]
    records = saw["first"] + saw["resumed"]
    assert records == [
        {
            "partition": 0,
            "offset": offset,
            "key": f"key-{offset % 10}",
            "size": 7,
            "value": f"value-{offset % 10}",
            "timestamp": T0_MS + offset % 10 * 1000,
            "trace": f"trace-{offset % 10}",
        }
        for offset in range(20)
    ]
    assert [record["offset"] for record in saw["sought"]] == [17, 18, 19]
    assert saw["committed"] == ["20"]
    assert saw["largeRefused"] == "MESSAGE_TOO_LARGE"
    assert saw["config"] == [["max.message.bytes", "11534336"]]
    assert saw["largeOffset"] == "20"
    assert saw["largeBack"] == [10 * 1024 * 1024]
    assert saw["partitions"] == 3
    assert saw["listed"] is False

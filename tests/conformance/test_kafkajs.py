"""kafkajs, the JavaScript client that is not built on librdkafka."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.clients.driver import T0_MS
from tests.conformance.foreign import kafkajs_folder


def run_scenario(bootstrap: str, topic: str) -> dict[str, Any]:
    command = ["node", "scenario.js", bootstrap, topic, str(T0_MS)]
    done = subprocess.run(
        command, cwd=kafkajs_folder(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kafkajs(bootstrap: str, topic: str) -> None:
    saw = run_scenario(bootstrap, topic)
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

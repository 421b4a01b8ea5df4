"""sarama, the Go client, which gives a connection up on which a request isn't answered."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.apache_kafka import CACHE

SOURCE = Path(__file__).parent / "sarama"


@pytest.fixture(scope="module")
def asking() -> Path:
    """The program, built once; Go keeps what it fetched and built itself."""
    built = CACHE / "sarama" / "asking"
    built.parent.mkdir(parents=True, exist_ok=True)
    unfinished = built.with_name(f"asking.{os.getpid()}")
    command = ["go", "build", "-o", str(unfinished), "."]
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false"}
    subprocess.run(command, cwd=SOURCE, env=environment, check=True, timeout=100)
    unfinished.replace(built)
    return built


def test_what_is_not_there_yet_is_answered(asking: Path, bootstrap: str) -> None:
    done = subprocess.run(
        [asking, bootstrap], stdout=subprocess.PIPE, timeout=60, check=True, text=True
    )
    said = json.loads(done.stdout)
    disabled = "kafka server: Security features are disabled"
    assert disabled in said["DescribeAcls"]
    assert disabled in said["CreateAcls"]
    assert said["DeleteAcls"] == "nothing"  # it keeps the error to itself
    assert said["DescribeClientQuotas"] == "nothing"
    assert said["DescribeUserScramCredentials"] not in ("nothing", "something")
    assert "EOF" not in said["DescribeUserScramCredentials"]
    assert said["Connected"] == "something"

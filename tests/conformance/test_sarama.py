"""sarama, the Go client, which gives a connection up on which a request isn't answered."""

from __future__ import annotations

import json
import subprocess

from tests.conformance.foreign import go_program


def test_what_is_not_there_yet_is_answered(bootstrap: str) -> None:
    done = subprocess.run(
        [go_program("sarama"), bootstrap], stdout=subprocess.PIPE, timeout=60, check=True, text=True
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

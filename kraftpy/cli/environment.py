"""The configuration of a node in its environment, as Apache Kafka's image has it.

Rules:

* `KAFKA_LOG_DIRS` is `log.dirs`: one `_` of a variable stands for `.`, two for `_`, three for `-`.
* What is no setting of a broker is left alone and told: images set variables for their scripts,
  testcontainers' modules some for ZooKeeper. A misspelt one is found by that line.
* Who waits for a container reads its output. One line has what testcontainers' Kafka modules wait
  for, those of Java and Go (`Transitioning from RECOVERY to RUNNING`) and that of Python, with
  (`Kafka Server started`) and without KRaft (`[KafkaServer id=1] started`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kraftpy.frozen import NamedTuple

PREFIX = "KAFKA_"
_MEANING = {1: ".", 2: "_", 3: "-"}


class Given(NamedTuple):
    """What an environment says: settings, and the variables that are none."""

    settings: dict[str, str]
    left_alone: list[str]


def given(environment: Mapping[str, str]) -> Given:
    """The settings of a broker in these variables, whose values aren't looked at."""
    from kraftpy.core.config.broker import broker_setting
    from kraftpy.core.config.ignored import why_ignored

    found = Given({}, [])
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        key = _key_of(variable)
        if key == "broker.id" or broker_setting(key) is not None or why_ignored(key) is not None:
            found.settings[key] = value
        else:
            found.left_alone.append(variable)
    return found


def _key_of(variable: str) -> str:
    name = variable.removeprefix(PREFIX).lower()
    return re.sub("_+", lambda found: _MEANING.get(len(found[0]), found[0]), name)


def variable_of(key: str) -> str:
    """The variable that a setting is given by."""
    name = key.replace("_", "__").replace("-", "___").replace(".", "_")
    return PREFIX + name.upper()


def ready_line(node_id: int) -> str:
    """What a node says once clients are answered."""
    return (
        f"[KafkaServer id={node_id}] started: Kafka Server started, "
        "Transitioning from RECOVERY to RUNNING"
    )

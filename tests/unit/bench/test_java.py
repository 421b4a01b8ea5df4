"""How Java is started: fast in tests, and as Kafka's own scripts do where it is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apache_kafka import (
    JVM,
    TEST_JVM,
    TOOL_JVM,
    ApacheKafka,
    ApacheKafkaQuorum,
    MeasuredApacheKafka,
    MeasuredApacheKafkaQuorum,
    archive_of,
    java,
)
from tests.bench.__main__ import parts
from tests.bench.transactions import JVM as BENCH_JVM


@pytest.mark.parametrize(
    ("jvm", "maps"), [(TOOL_JVM, True), (TEST_JVM, True), (JVM, False), (BENCH_JVM, False)]
)
def test_what_is_measured_maps_no_archive(tmp_path: Path, jvm: str, maps: bool) -> None:
    jars = tmp_path / "jars"
    plain = ["java", *jvm.split(), "-cp", f"{jars}/*", "Main", "argument"]
    assert java(jars, "Main", "argument", jvm=jvm) == plain
    archive_of(jars).touch()
    command = java(jars, "Main", "argument", jvm=jvm)
    assert (f"-XX:SharedArchiveFile={tmp_path}/jars.jsa" in command) == maps
    assert (command == plain) == (not maps)


def test_brokers_of_tests_start_fast_and_those_of_the_race_as_their_scripts_do() -> None:
    assert {ApacheKafka.jvm, ApacheKafkaQuorum.jvm} == {TEST_JVM}
    assert {MeasuredApacheKafka.jvm, MeasuredApacheKafkaQuorum.jvm} == {JVM}
    raced = {entrant for part in parts().values() for entrant in part.entrants}
    assert {MeasuredApacheKafka, MeasuredApacheKafkaQuorum} <= raced
    assert not {ApacheKafka, ApacheKafkaQuorum} & raced

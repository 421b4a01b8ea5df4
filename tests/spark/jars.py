"""Spark's own Kafka connector, the reference for `format("kraftpy")`: jars fetched by Maven.

The versions are those that are in Maven Central together and were seen to work with PySpark 4.2.0;
what they depend on beside each other is in PySpark.
"""

from __future__ import annotations

from pathlib import Path

from tests.apache_kafka import CACHE, fetch_jars_of

CONNECTOR = "4.2.0"
_ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_EVERYTHING = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
_DEPENDENCIES = "".join(
    f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
    f"<version>{version}</version><exclusions>{_EVERYTHING}</exclusions></dependency>"
    for group, artifact, version in _ARTIFACTS
)
POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kraftpy.tests</groupId><artifactId>spark-kafka</artifactId><version>1</version>
  <dependencies>{_DEPENDENCIES}</dependencies>
</project>
"""


def connector_jars() -> list[Path]:
    """The connector's jars, fetched into the cache unless they are there."""
    folder = fetch_jars_of(POM, CACHE / "spark" / "jars", f"Spark's Kafka connector {CONNECTOR}")
    return sorted(folder.glob("*.jar"))

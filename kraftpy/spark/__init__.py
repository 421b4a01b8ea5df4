"""Kafka topics in Spark without a jar: `format("kraftpy")`, a Python data source.

It has the options and the table of Spark's own `format("kafka")` and needs only the extra
(`pip install "kraftpy[spark]"`): PySpark finds it by itself through `pyspark_kraftpy`, and
`register` adds the session's settings that make it complete.

* `decoder`, `encoder`, `varints`: fetched batches to Arrow and back, all records at once
* `brokers`: metadata, offsets and raw fetches for blocking callers
* `settings`, `positions`, `planning`: what the user asked for, to ranges of offsets, to tasks
* `key_slices`: a part of a partition's keys, for one of several tasks that share it
* `source`: the data source; `batch`, `stream`: its readers; `sink`: its writers
* `delivery`, `exactly_once`: what a task of a writer does, without a transaction and in one
* `copying`: the writer of a mirror that copies exactly once

Importing this package imports neither Spark nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes `format("kraftpy")` known to a session, with filters that choose what is read.

    Only the filters need this: they are a setting of the session, off by default, and the option
    pushFilters, which is on by default from here on.
    """
    from kraftpy.spark.source import PushingKraftpySource

    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(PushingKraftpySource)

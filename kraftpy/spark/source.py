"""The data source `format("kraftpy")`: which reader or writer the options ask for.

The table is that of Spark's Kafka source. A schema that the user gives (`.schema("partition int,
offset long")`) chooses columns of it, and only these are decoded: Spark's interface for Python
sources has no other way to leave columns out.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kraftpy.spark.batch import BatchReader, PushingBatchReader
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import (
    BATCH,
    STREAM,
    WriteSettings,
    check_job,
    check_stream,
    read_settings,
    write_settings,
)
from kraftpy.spark.sink import BatchWriter, StreamWriter, check_columns
from kraftpy.spark.stream import StreamReader

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, StructField("headers", ArrayType(_HEADER))])


class KraftpySource(DataSource):
    """Topics of a Kafka cluster as tables; see kraftpy/spark/README.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "kraftpy"

    def schema(self) -> StructType:
        """Key, value, topic, partition, offset, timestamp, timestampType; headers if wanted."""
        wanted = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return SCHEMA_WITH_HEADERS if wanted else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        settings = read_settings(self.options, BATCH)
        kind = PushingBatchReader if settings.push_filters else BatchReader
        return kind(settings, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(read_settings(self.options, STREAM), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError('a topic can only be appended to: .mode("append")')
        settings = self._write_settings(schema)
        check_job(settings)
        return BatchWriter(settings)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise OptionError(
                'a topic can only be appended to: .outputMode("append"), or "update" with a key'
            )
        settings = self._write_settings(schema)
        check_stream(settings)
        return StreamWriter(settings)

    def _write_settings(self, schema: StructType) -> WriteSettings:
        settings = write_settings(self.options)
        check_columns(schema, settings)
        return settings


class PushingKraftpySource(KraftpySource):
    """The same with pushFilters on unless the options say otherwise."""

    def reader(self, schema: StructType) -> DataSourceReader:
        self.options.setdefault("pushFilters", "true")
        return super().reader(schema)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema chooses of the source's; OptionError if it says anything else."""
    there = {field.name: field.dataType for field in SCHEMA_WITH_HEADERS.fields}
    for field in schema.fields:
        kind = there.get(field.name)
        if kind is None:
            raise OptionError(
                f"no column {field.name!r}; a topic has {', '.join(there)} (values are bytes: "
                "select from_json(value.cast('string'), ...) for what is in them)"
            )
        if field.dataType.simpleString() != kind.simpleString():
            raise OptionError(
                f"column {field.name} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after loading"
            )
    if not schema.fields:
        raise OptionError("the schema has no columns")
    return tuple(field.name for field in schema.fields)

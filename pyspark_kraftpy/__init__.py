"""Where PySpark looks for `format("kraftpy")`: it imports `pyspark_*` and takes `DefaultSource`.

It does so for every session that uses any Python source, and an error here would take all of them
away. So where kraftpy is installed without what its source needs, a stand-in says so when used.
"""

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class MissingExtra(DataSource):
    """Stands for the source where its libraries are missing or Spark is too old."""

    reason = ""

    @classmethod
    def name(cls) -> str:
        return "kraftpy"

    def _refuse(self, *_: Any) -> Any:
        raise ImportError(
            f'format("kraftpy") needs PySpark 4.2, pyarrow and numpy ({self.reason}): '
            'pip install "kraftpy[spark]"'
        )

    schema = reader = writer = streamReader = streamWriter = _refuse  # noqa: N815


DefaultSource: type[DataSource]
try:
    from kraftpy.spark.source import KraftpySource as DefaultSource
except ImportError as error:
    MissingExtra.reason = str(error)
    DefaultSource = MissingExtra

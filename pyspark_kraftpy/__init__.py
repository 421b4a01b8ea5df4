"""Where PySpark looks for `format("kraftpy")`: it imports `pyspark_*` and takes `DefaultSource`."""

from kraftpy.spark.source import KraftpySource as DefaultSource

__all__ = ["DefaultSource"]

"""The Spark session of a job: one on this machine unless another master is named.

Under spark-submit the session is the one that was submitted.  To workers elsewhere this package
goes along by itself; what it imports (Arrow, NumPy, the codecs) has to be installed there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

# What Spark says while it starts is no news to who runs a job; what goes wrong is raised here too.
_LOGGING = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %m%n%ex{1}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.write.name = org.apache.spark.sql.execution.datasources
logger.write.level = off
"""


def start_session(
    name: str, master: str | None, conf: Mapping[str, str], *, progress: bool
) -> SparkSession:
    """A session with `format("kraftpy")` complete; `progress` shows Spark's bar on stderr."""
    from pyspark.sql import SparkSession

    from kraftpy.spark import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging = Path(tempfile.mkdtemp(prefix="kraftpy-")) / "log4j2.properties"
    builder = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master or not submitted:
        master = master or LOCAL
        builder = builder.master(master)
        if master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
        logging.write_text(_LOGGING)
        quiet = f"-Dlog4j2.configurationFile={logging.as_uri()}"
        builder = builder.config("spark.driver.extraJavaOptions", shlex.quote(quiet))
    builder = builder.config("spark.ui.showConsoleProgress", str(progress).lower())
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    # 10,000 rows of Spark's default are 10 GB when records are large.
    builder = builder.config("spark.sql.execution.arrow.maxBytesPerBatch", str(16 << 20))
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    finally:
        shutil.rmtree(logging.parent)
    register(session)
    if not session.sparkContext.master.startswith("local"):
        session.sparkContext.addPyFile(str(_package()))
    return session


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises: its own errors, and those of the bridge to its Java."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _package() -> Path:
    """A zip of this package, for workers that don't have it."""
    import kraftpy

    root = Path(kraftpy.__file__).parent
    target = Path(tempfile.mkdtemp(prefix="kraftpy-")) / "kraftpy.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("kraftpy") / path.relative_to(root))
    return target

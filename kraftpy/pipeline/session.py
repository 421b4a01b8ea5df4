"""The Spark session of a job: one on this machine unless another master is named.

Under spark-submit the session is the one that was submitted. To workers elsewhere this package
goes along by itself; what it imports (Arrow, NumPy, the codecs) has to be installed there.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import sys
import tempfile
import zipfile
import zipimport
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kraftpy.spark.positions import OptionError

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

    python = conf.get("spark.pyspark.python")  # only spark-submit knows this one by itself
    os.environ["PYSPARK_PYTHON"] = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
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
    # Spark keeps with each function, and with the source, which packages go with it: those before.
    if re.fullmatch(r"local(\[.*\])?", session.sparkContext.master) is None:
        _send_package(session)
    register(session)
    return session


def refuse_speculation(session: SparkSession) -> None:
    """OptionError if Spark may run a task twice at once: what it sends would be there twice."""
    if session.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise OptionError(
            "spark.speculation has tasks run twice at once, which would send their records twice"
            " and mix up their order: set it to false (--conf spark.speculation=false)"
        )


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises: its own errors, and those of the bridge to its Java."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _send_package(session: SparkSession) -> None:
    """Lets workers import this package, whether or not they have it (then in this version)."""
    import kraftpy

    if isinstance(kraftpy.__loader__, zipimport.zipimporter):
        return  # it came by `spark-submit --py-files`, as it does to workers
    root = Path(kraftpy.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="kraftpy-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # workers fetch it from there
    package = folder / "kraftpy.zip"
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("kraftpy") / path.relative_to(root))
    session.sparkContext.addPyFile(str(package))

"""Programs of tests in Go, Java and for Node.js, each made once for a machine, in the cache."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.apache_kafka import CACHE, TOOL_JVM, fetch_jars, fetch_old_client_jars, java

SOURCES = Path(__file__).parent
TIMEOUT_S = 100


@functools.cache
def go_program(name: str) -> Path:
    """The program out of the folder of this name; Go keeps what it fetched and built itself."""
    built = CACHE / name / "program"
    built.parent.mkdir(parents=True, exist_ok=True)
    unfinished = built.with_name(
        f"program.{os.getpid()}"
    )  # another worker may be running the other
    command = ["go", "build", "-o", str(unfinished), "."]
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false"}
    subprocess.run(command, cwd=SOURCES / name, env=environment, check=True, timeout=TIMEOUT_S)
    unfinished.replace(built)
    return built


def said_by(name: str, *words: str, timeout_s: float = TIMEOUT_S, text: str | None = None) -> Any:
    """What that program prints, as JSON, when it's given these words, and perhaps a text."""
    done = subprocess.run(
        [go_program(name), *words],
        input=text,
        stdout=subprocess.PIPE,
        timeout=timeout_s,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def java_program(name: str, jvm: str = TOOL_JVM) -> list[str]:
    """The command for the program of this name in the folder `java`, with Kafka's clients."""
    return java(fetch_jars(), name, jvm=jvm, classes=_java_classes("java", fetch_jars()))


def old_java_program(name: str) -> list[str]:
    """The same of the folder `java_0_10`, with Kafka's client of that release."""
    jars = fetch_old_client_jars()
    return java(jars, name, classes=_java_classes("java_0_10", jars))


@functools.cache
def _java_classes(folder_name: str, jars: Path) -> Path:
    """Of all programs in the folder: to compile one at each start takes longer than that."""
    sources = sorted((SOURCES / folder_name).glob("*.java"))
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    classes = CACHE / folder_name / content[:16]
    if not classes.exists():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
            command = ["javac", "-cp", f"{jars}/*", "-d", f"{folder}/classes"]
            subprocess.run([*command, *map(str, sources)], check=True, timeout=TIMEOUT_S)
            with contextlib.suppress(OSError):  # another worker was quicker
                Path(folder, "classes").rename(classes)
    return classes


@functools.cache
def kafkajs_folder() -> Path:
    """A copy of the folder `kafkajs` with its dependencies installed, kept between runs."""
    folder = CACHE / "kafkajs"
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / "package-lock.json"
        asked = SOURCES / "kafkajs" / known.name
        if not (folder / "installed").exists() or known.read_bytes() != asked.read_bytes():
            _install(folder)
        for script in asked.parent.glob("*.js"):
            unfinished = folder / f"{script.name}.{os.getpid()}"
            shutil.copy(script, unfinished)
            unfinished.replace(folder / script.name)
    return folder


def _install(folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / "kafkajs" / name, folder)
    (folder / "installed").unlink(missing_ok=True)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )
    (folder / "installed").touch()

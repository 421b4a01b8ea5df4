"""The programs that tests, benches and demonstrations need beside Python, and what to install.

A target that lacks one ends at its start, with a sentence that names the package: `require`.
"""

from __future__ import annotations

import shutil

PROGRAMS = {
    "java": "Java 17 (apt-get install default-jdk-headless)",
    "javac": "a Java compiler (apt-get install default-jdk-headless)",
    "mvn": "Maven (apt-get install maven)",
    "kcat": "kcat (apt-get install kcat)",
    "node": "Node.js 18 or newer (apt-get install nodejs)",
    "npm": "npm (apt-get install npm)",
    "prometheus": "Prometheus (apt-get install prometheus)",
    "chromium": "Chromium (apt-get install chromium)",
    "promtool": "promtool (apt-get install prometheus)",
    "Burrow": "Burrow (apt-get install burrow)",
    "go": "Go 1.24 or newer, or 1.21 that may fetch it (apt-get install golang-go)",
    "systemd-analyze": "systemd-analyze (apt-get install systemd)",
    "unshare": "unshare and nsenter (apt-get install util-linux)",
    "mount": "mount (apt-get install mount)",
    "ip": "ip (apt-get install iproute2)",
}
"""What each one is, with the Debian package that brings it."""

APACHE_KAFKA = ("java", "mvn")
"""What Apache Kafka runs in, and what fetches it."""


def missing(*programs: str) -> list[str]:
    """What this machine lacks of these, in words."""
    return [PROGRAMS[name] for name in programs if shutil.which(name) is None]


def require(what: str, *programs: str) -> None:
    """Ends the program with a sentence if this machine lacks what `what` needs."""
    if lacking := missing(*programs):
        raise SystemExit(f"{what} needs what is missing here: {'; '.join(lacking)}")

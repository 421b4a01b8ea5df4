"""Three of the StatefulSet's pods without Kubernetes: namespaces in place of containers.

Each pod has a network of its own (an address on a bridge that only the pods are on) and a view of
the files of its own: the ConfigMap and the Secret where they are mounted, its data folder, a host
name, and an /etc/hosts in place of the cluster's DNS. In it runs the command of the StatefulSet as
it stands, under the manifest's environment, as process 1. Nothing needs more than user namespaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.test_deploy import DEPLOY, ROOT, properties_files, stateful_set

TIMEOUT_S = 60.0
REPLICAS = 3
_NETWORK = "10.99.0"


def image_command() -> list[str]:
    """The image's ENTRYPOINT."""
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)
    return [str(word) for word in json.loads(entry)]


def install_as_the_image_does(folder: Path) -> Path:
    """Carries out COPY and RUN of the first stage; the folder that stands for /opt/kraftpy."""
    stage = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")[1].replace("\\\n", "")
    source, prefix = folder / "source", folder / "opt"
    source.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for line in stage.splitlines()[1:]:
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / target, ignore=ignore)
                else:
                    shutil.copy(ROOT / name, source / target)
        elif word == "RUN":
            command = rest.replace("/opt/kraftpy", str(prefix))
            command = re.sub(r"^python ", f"{sys.executable} ", command.strip())
            done = subprocess.run(
                ["sh", "-ec", command], cwd=source, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
    return prefix


def probe_code(container: dict[str, Any], name: str) -> str:
    """Python that asks what a probe of the manifest asks, and fails when it does."""
    probe = container[name]
    (port,) = (
        each["containerPort"]
        for each in container["ports"]
        if each["name"] == probe["httpGet"]["port"]
    )
    url, timeout_s = f"http://127.0.0.1:{port}{probe['httpGet']['path']}", probe["timeoutSeconds"]
    return f"import urllib.request as r; r.urlopen({url!r}, timeout={timeout_s})"


class Pods:
    """The pods of the StatefulSet."""

    def __init__(self, root: Path, prefix: Path) -> None:
        self.root = root
        self.prefix = prefix
        spec = stateful_set()["spec"]["template"]["spec"]
        (self._container,) = spec["containers"]
        self._grace_s = spec["terminationGracePeriodSeconds"]
        self._hub: subprocess.Popen[bytes] | None = None
        self._pods: dict[int, subprocess.Popen[bytes]] = {}
        self._write_mounts()

    def _write_mounts(self) -> None:
        for name in ("config", "quorum", "etc"):
            (self.root / name).mkdir()
        (self.root / "config/server.properties").write_text(dict(properties_files())["kubernetes"])
        (self.root / "quorum/quorum.secret").write_text("a secret that only this test has\n")
        lines = ["127.0.0.1 localhost"]
        for ordinal in range(REPLICAS):
            lines.append(
                f"{_NETWORK}.{10 + ordinal} kraftpy-{ordinal}.kraftpy-nodes.kraftpy.svc kraftpy"
            )
        (self.root / "etc/hosts").write_text("\n".join([*lines, ""]))

    def __enter__(self) -> Pods:
        self._hub = subprocess.Popen(["unshare", "-rn", "sleep", "infinity"])
        self._hub_up = False
        deadline = time.monotonic() + TIMEOUT_S
        while not self._hub_up:
            assert time.monotonic() < deadline
            self._hub_up = (
                self._in_hub("ip link add pods type bridge && ip link set pods up", check=False)
                == 0
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._pods.values():
            process.kill()
            process.wait()
        assert self._hub is not None
        self._hub.kill()
        self._hub.wait()

    def _in_hub(self, script: str, *, check: bool = True) -> int:
        assert self._hub is not None
        enter = ["nsenter", "-t", str(self._hub.pid), "-U", "-n", "--preserve-credentials"]
        done = subprocess.run(
            [*enter, "sh", "-ec", script], capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.returncode

    def start_all(self) -> None:
        for ordinal in range(REPLICAS):
            self.start(ordinal)

    def start(self, ordinal: int) -> None:
        """As podManagementPolicy says, not waiting for the others."""
        assert self._hub is not None
        data = self.root / f"data{ordinal}"
        data.mkdir(exist_ok=True)
        sources = {
            "data": data,
            "config": self.root / "config",
            "quorum": self.root / "quorum",
            "tmp": None,
        }
        mounts = []
        for mount in self._container["volumeMounts"]:
            source, target = sources[mount["name"]], mount["mountPath"]
            if source is not None:
                read_only = "-o ro" if mount.get("readOnly") else ""
                mounts.append(f"mkdir -p $R{target}; mount --bind {read_only} {source} $R{target}")
        script = f"""
            R={self.root}/root{ordinal}
            mkdir -p $R && mount -t tmpfs root $R
            for name in /bin /sbin /lib /lib64 /usr /dev /root /opt {self.prefix}; do
              if [ -e $name ]; then mkdir -p $R$name; mount --rbind $name $R$name; fi
            done
            mkdir -p $R/proc $R/etc $R/tmp $R/opt/kraftpy
            mount -t proc proc $R/proc
            mount --bind {self.prefix} $R/opt/kraftpy
            cp {self.root}/etc/hosts $R/etc/hosts
            {"; ".join(mounts)}
            hostname kraftpy-{ordinal}
            ip link set lo up
            i=0; until ip link show eth0 >/dev/null 2>&1; do
              i=$((i+1)); [ $i -lt 1000 ]; sleep 0.01; done
            ip addr add {_NETWORK}.{10 + ordinal}/24 dev eth0; ip link set eth0 up
            cd $R
            exec env -i PATH={self.prefix}/bin:/usr/bin:/bin:/usr/sbin PYTHONDONTWRITEBYTECODE=1 \\
              POD_NAME=kraftpy-{ordinal} POD_NAMESPACE=kraftpy chroot $R "$@"
        """
        enter = ["nsenter", "-t", str(self._hub.pid), "-U", "-n", "--preserve-credentials"]
        command = [*enter, "unshare", "-nmpuf", "--kill-child", "sh", "-ec", script, "sh"]
        with (self.root / f"log{ordinal}").open("ab") as log:
            process = subprocess.Popen(
                [*command, *self._container["command"]], stdout=log, stderr=log
            )
        self._pods[ordinal] = process
        pid = self._first_process(process.pid)
        self._in_hub(
            f"ip link add v{ordinal} type veth peer name eth0 netns {pid};"
            f"ip link set v{ordinal} master pods; ip link set v{ordinal} up"
        )

    def _first_process(self, pid: int) -> int:
        """The id, outside, of what is process 1 in the pod."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children:
                return int(children[0])
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def inside(self, ordinal: int, *command: str) -> str:
        """What a command prints that `kubectl exec` would run."""
        pid = self._first_process(self._pods[ordinal].pid)
        enter = ["nsenter", "-t", str(pid), "-U", "-n", "-m", "-p", "-r", "-w"]
        done = subprocess.run(
            [*enter, "--preserve-credentials", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**os.environ, "PATH": f"{self.prefix}/bin:/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log(ordinal)
        return done.stdout

    def wait_ready(self) -> None:
        """Until the probes of all succeed, in the order in which a kubelet begins with them."""
        deadline = time.monotonic() + TIMEOUT_S
        for ordinal in range(REPLICAS):
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                code = probe_code(self._container, name)
                while True:
                    try:
                        self.inside(ordinal, "python", "-c", code)
                        break
                    except AssertionError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.2)

    def delete(self, ordinal: int) -> None:
        """SIGTERM to the first process, which has to end in order within the grace period."""
        process = self._pods.pop(ordinal)
        os.kill(self._first_process(process.pid), signal.SIGTERM)
        assert process.wait(self._grace_s) == 0, self.log(ordinal)
        assert "node-stopped" in self.log(ordinal)

    def log(self, ordinal: int) -> str:
        return (self.root / f"log{ordinal}").read_text()[-4000:]

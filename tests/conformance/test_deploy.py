"""What deploy/ ships, judged by the tools that would judge it where it is used.

No image is built and nothing is deployed: there is no container runtime and no Kubernetes here. The
image's build steps and what it runs are carried out as they stand, in namespaces in place of
containers (`pods`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.pods import Pods, image_command, install_as_the_image_does
from tests.test_deploy import DEPLOY, ROOT, documents

BIN = Path(sys.executable).parent
COMPOSE = "github.com/compose-spec/compose-go/v2/cmd@v2.9.1"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
EXPOSURE_MAX = 1.4


def run(*command: str | Path, code: int = 0) -> str:
    """What a program prints, which has to end with `code`."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_hadolint_finds_nothing_in_the_image(tmp_path: Path) -> None:
    assert run(BIN / "hadolint", "deploy/Dockerfile") == ""
    bad = tmp_path / "Dockerfile"
    bad.write_text((DEPLOY / "Dockerfile").read_text().replace("WORKDIR /var", "WORKDIR var"))
    assert "DL3000" in run(BIN / "hadolint", bad, code=1)


@pytest.mark.parametrize("change", [("", ""), ("serviceName:", "serviceNaem:")])
def test_kubernetes_schemas_accept_the_manifests(change: tuple[str, str], tmp_path: Path) -> None:
    manifest = tmp_path / "kraftpy.yaml"
    manifest.write_text((DEPLOY / "kubernetes" / "kraftpy.yaml").read_text().replace(*change))
    said = run(BIN / "kubernetes-validate", "--strict", manifest, code=int(change[0] != ""))
    if change[0] == "":
        assert said.count(" passed ") == len(documents(manifest))


def test_the_prometheus_operators_schema_accepts_the_monitor() -> None:
    import jsonschema  # of the group conformance: `make test` collects this file without it

    found = json.loads(run("go", "mod", "download", "-json", OPERATOR))
    crds = Path(found["Dir"], "example", "prometheus-operator-crd")
    crd = yaml.safe_load((crds / "monitoring.coreos.com_servicemonitors.yaml").read_text())
    schema = _strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    (monitor,) = documents(DEPLOY / "kubernetes" / "monitoring.yaml")
    jsonschema.validate(monitor, schema)
    monitor["spec"]["endpoints"][0]["prot"] = "metrics"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(monitor, schema)


def _strict(schema: Any) -> Any:
    """The schema, but an object has no properties that it doesn't name."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    properties = schema.get("properties")
    if isinstance(properties, dict) and not set(properties) >= {"apiVersion", "kind", "metadata"}:
        strict.setdefault("additionalProperties", False)
    return strict


@pytest.mark.timeout(300)
def test_compose_reads_its_file(tmp_path: Path) -> None:
    said = run("go", "run", COMPOSE, "deploy/compose.yaml")
    model = yaml.safe_load(said)
    names = {"kraftpy-1", "kraftpy-2", "kraftpy-3", "probe", "prometheus", "grafana"}
    assert set(model["services"]) == names
    assert model["services"]["kraftpy-2"]["cap_drop"] == ["ALL"]
    bad = tmp_path / "compose.yaml"
    bad.write_text((DEPLOY / "compose.yaml").read_text().replace("hostname:", "hostnaem:"))
    assert "hostnaem" in run("go", "run", COMPOSE, str(bad), code=1)


def test_promtool_reads_prometheus_configuration(tmp_path: Path) -> None:
    for path in (DEPLOY / "prometheus" / "prometheus.yml", *_rules()):
        (tmp_path / path.name).write_text(path.read_text())
    assert "SUCCESS" in run("promtool", "check", "config", tmp_path / "prometheus.yml")


def _rules() -> list[Path]:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    volumes = compose["services"]["prometheus"]["volumes"]
    files = [DEPLOY / volume.split(":")[0] for volume in volumes if "/dashboards/" in volume]
    assert len(files) == 2
    return files


def test_systemd_accepts_the_unit_and_its_sandbox(tmp_path: Path) -> None:
    unit = tmp_path / "kraftpy.service"
    program = tmp_path / "kraftpy"
    program.symlink_to("/bin/true")
    text = (DEPLOY / "systemd" / "kraftpy.service").read_text()
    unit.write_text(text.replace("/opt/kraftpy/bin/kraftpy", str(program)))
    assert run("systemd-analyze", "verify", unit) == ""
    said = run("systemd-analyze", "security", "--offline=true", unit)
    exposure = re.search(r"Overall exposure level for kraftpy.service: ([\d.]+)", said)
    assert exposure is not None
    assert float(exposure[1]) <= EXPOSURE_MAX
    guide = (DEPLOY / "operations.md").read_text()
    assert f"exposure of\n{exposure[1]} " in guide
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=mixt"))
    assert "mixt" in run("systemd-analyze", "verify", unit)


@pytest.mark.timeout(400)
def test_the_images_build_makes_a_node_and_three_pods_make_a_cluster(tmp_path: Path) -> None:
    """Build steps, the StatefulSet's command, mounts, names and probes as they stand."""
    prefix = install_as_the_image_does(tmp_path / "image")
    version = run(prefix / "bin" / "kraftpy", "--version").strip()
    assert version
    assert not (prefix / "bin" / "pip").exists()
    with Pods(tmp_path, prefix) as pods:
        pods.start_all()
        pods.wait_ready()
        health = pods.inside(0, "kraftpy", "cluster", "health", "-b", "kraftpy:9092")
        assert health.startswith("healthy: 3 brokers")
        names = pods.inside(1, "kraftpy", "cluster", "brokers", "-b", "kraftpy:9092")
        for ordinal in range(3):
            assert f"kraftpy-{ordinal}.kraftpy-nodes.kraftpy.svc:9092" in names
        pods.inside(2, "kraftpy", "topic", "create", "orders", "-b", "kraftpy:9092")
        pods.inside(2, "sh", "-c", "echo one | kraftpy produce orders -b kraftpy:9092")
        pods.delete(2)  # SIGTERM to its first process
        pods.start(2)
        pods.wait_ready()
        read = ["kraftpy", "consume", "orders", "-n", "1", "-b", "kraftpy:9092"]
        assert pods.inside(0, *read) == "one\n"
        page = pods.inside(1, "python", "-c", _FETCH.format(path="/metrics"))
        assert "kraftpy_build_info" in page
        for ordinal in range(3):
            pods.delete(ordinal)


_FETCH = (
    "import urllib.request as r; "
    "print(r.urlopen('http://127.0.0.1:9404{path}', timeout=9).read().decode())"
)


def test_compose_adds_arguments_to_the_images_entry_point(tmp_path: Path) -> None:
    """Without settings it says which are missing, to a person who forgot them."""
    assert image_command() == ["/usr/local/bin/kraftpy-container"]
    script = (DEPLOY / "container" / "run").read_text()
    run_it = tmp_path / "run"
    run_it.write_text(script.replace("/etc/kraftpy/server", f"{DEPLOY}/server"))
    done = subprocess.run(
        ["sh", run_it, "--override=num.partitions=3"],
        env={"PATH": f"{BIN}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "node.id is missing" in done.stderr

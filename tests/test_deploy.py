"""What deploy/ says is so: commands, settings, alerts, links, ports and paths fit the code.

What needs other programs (linters, schemas, three nodes) is in tests/conformance.
`python -m tests.test_deploy` (`make docs`) rewrites the guide's table of events.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kraftpy.cli.app import app
from kraftpy.core.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, parse_properties
from kraftpy.core.config.group_resource import GROUP_SETTINGS
from kraftpy.events import EVENTS
from kraftpy.metrics.catalog import CATALOG
from kraftpy.metrics.exporter import HEALTH_TIMEOUT_S
from tests import warm
from tests.dashboards.shipped import all_expressions, metrics_in
from tests.processes import free_port
from tests.test_docs import table

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
GUIDE = DEPLOY / "operations.md"
ALERTS = ROOT / "dashboards" / "prometheus" / "alerts.yml"
MANIFESTS = sorted(DEPLOY.rglob("*.yaml")) + sorted(DEPLOY.rglob("*.yml"))


def with_events(text: str) -> str:
    """The guide with the table of events as the code has it."""
    rows = [
        [f"`{name}`", " ".join(f"`{field}`" for field in kind.fields), kind.doc]
        for name, kind in EVENTS.items()
    ]
    events = table(["event", "fields", ""], rows)
    pattern = r"(<!-- events: begin [^\n]*\n).*?(<!-- events: end -->)"
    found, count = re.subn(pattern, lambda m: f"{m[1]}{events}\n{m[2]}", text, flags=re.DOTALL)
    assert count == 1
    return found


def anchors(text: str) -> list[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles]


def said() -> list[str]:
    """Everything that the guide tells to type, prompts left out."""
    text = GUIDE.read_text()
    fenced = "".join(re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^\w+\$ (.*)$", fenced, re.MULTILINE)
    return lines + re.findall(r"`([a-z][^`\n]* [^`\n]*)`", text)


def commands() -> list[str]:
    """The `kraftpy ...` of what is to be typed; blanks in prose stand for a command's name."""
    found = [re.match(r"(?:until )?(kraftpy [a-z].*)", line) for line in said()]
    texts = [match[1].split("; do ")[0] for match in found if match]
    return sorted(set(texts))


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def stateful_set() -> Any:
    (found,) = (
        each
        for each in documents(DEPLOY / "kubernetes" / "kraftpy.yaml")
        if each["kind"] == "StatefulSet"
    )
    return found


def properties_files() -> list[tuple[str, str]]:
    """The configurations that are shipped, by where they are."""
    config_map = documents(DEPLOY / "kubernetes" / "kraftpy.yaml")[0]
    return [
        ("server.properties", (DEPLOY / "server.properties").read_text()),
        ("kubernetes", config_map["data"]["server.properties"]),
    ]


def test_the_table_of_events_is_current() -> None:
    text = GUIDE.read_text()
    assert text == with_events(text), "the guide's events are old: make docs"


def test_every_alert_has_a_chapter_and_every_chapter_an_alert() -> None:
    rules = [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    named = {rule["annotations"]["runbook"] for rule in rules}
    assert named == {f"deploy/operations.md#{rule['alert'].lower()}" for rule in rules}
    chapters = re.findall(r"^### (Kraftpy\w+)$", GUIDE.read_text(), re.MULTILINE)
    assert sorted(chapters) == sorted({rule["alert"] for rule in rules})


def test_the_guide_installs_every_file_that_the_unit_names() -> None:
    unit = (DEPLOY / "systemd" / "kraftpy.service").read_text()
    named = set(re.findall(r"^Documentation=file:(\S+)", unit, re.MULTILINE))
    assert named
    named |= set(re.findall(r"^EnvironmentFile=(\S+)", unit, re.MULTILINE))
    named |= set(re.findall(r"--config (\S+)", unit))
    files = [shlex.split(line)[-2:] for line in said() if line.startswith("install -m")]
    installed = {target: source for source, target in files}
    assert named <= installed.keys()
    made_by_hand = {"quorum.secret", "node.env"}
    for source in set(installed.values()) - made_by_hand:
        assert list(DEPLOY.rglob(source)), source


def test_links_lead_somewhere() -> None:
    text = GUIDE.read_text()
    assert len(set(anchors(text))) == len(anchors(text))
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 30
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in anchors(text), target
        else:
            assert (DEPLOY / target).exists(), target


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_guide_is_accepted(line: str) -> None:
    """Parsed down to the last option, not run; in prose what has to be given may be left out."""
    command: click.Command = app
    words = shlex.split(line)[1:]
    context = click.Context(app, info_name="kraftpy")
    while isinstance(command, click.Group) and words:
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r}"
        command, context = found, click.Context(found, context, info_name=name)
    try:
        command.parse_args(context, words)
    except click.MissingParameter:
        assert f"`{line}`" in GUIDE.read_text(), "it is complete where it is to be copied"


def test_settings_of_the_guide_exist() -> None:
    text = GUIDE.read_text()
    dotted = {
        name
        for name in re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=[^`]*)?`", text)
        if not name.endswith((".properties", ".env", ".secret", ".service", ".yaml", ".json"))
    }
    dotted |= set(re.findall(r"-c ([a-z.]+)=", text))
    assert len(dotted) > 15
    # Settings of clients, and a feature.
    others = {"max.poll.interval.ms", "max.poll.records", "transaction.version"}
    assert not dotted - {*BROKER_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS} - others


@pytest.mark.parametrize(("where", "text"), properties_files())
def test_a_shipped_configuration_is_one(where: str, text: str) -> None:
    voters = "controller.quorum.voters=1@node1:9093,2@node2:9093,3@node3:9093\nnode.id=1\n"
    config = BrokerConfig.from_properties(parse_properties(f"{voters}{text}"))
    if where == "kubernetes":
        config = BrokerConfig.from_properties(parse_properties(f"{text}\nnode.id=0"))
    config.check_complete()
    assert not config.ignored
    assert config.default_replication_factor == 3
    assert config.min_insync_replicas == 2


def test_the_image_the_unit_and_the_manifests_name_the_same_things() -> None:
    config = BrokerConfig.from_properties(
        parse_properties((DEPLOY / "server.properties").read_text())
    )
    image = (DEPLOY / "Dockerfile").read_text()
    assert config.kraftpy_metrics_listener is not None
    ports = {each.port for each in config.listeners} | {config.kraftpy_metrics_listener.port}
    assert {
        int(port) for port in re.findall(r"^EXPOSE (.*)$", image, re.MULTILINE)[0].split()
    } == ports
    assert f":{config.kraftpy_metrics_listener.port}/healthz" in image
    assert f"VOLUME {config.log_dirs[0]}" in image
    (container,) = stateful_set()["spec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in container["ports"]} == ports
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    kubernetes = dict(properties_files())["kubernetes"]
    of_pods = BrokerConfig.from_properties(parse_properties(f"{kubernetes}\nnode.id=0"))
    assert str(Path(of_pods.log_dirs[0]).parent) in mounts
    assert str(Path(of_pods.kraftpy_quorum_secret_file or "").parent) in mounts
    assert len(of_pods.voters) == stateful_set()["spec"]["replicas"]
    unit = (DEPLOY / "systemd" / "kraftpy.service").read_text()
    assert f"StateDirectory={Path(config.log_dirs[0]).name}" in unit


PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_waits_for_longer_than_its_answer_takes(name: str) -> None:
    """Each process of the node has its time, and one that hangs takes all of it."""
    (container,) = stateful_set()["spec"]["template"]["spec"]["containers"]
    assert container[name]["timeoutSeconds"] > 2 * HEALTH_TIMEOUT_S
    image = (DEPLOY / "Dockerfile").read_text()
    outer, inner = re.findall(r"^HEALTHCHECK .*--timeout=(\d+)s.*\n.*timeout=(\d+)\)", image, re.M)[
        0
    ]
    assert int(outer) > int(inner) > 2 * HEALTH_TIMEOUT_S


def test_a_node_that_recovers_is_not_killed_by_its_probes(tmp_path: Path) -> None:
    """Not a word from its broker, from before the first question on: as one that reads its logs.

    Without the other voters it can't start, so that it is caught while it does.
    """
    ports = [free_port() for _ in range(5)]
    voters = ",".join(f"{id_}@127.0.0.1:{port}" for id_, port in enumerate(ports[:3]))
    path, secret = tmp_path / "server.properties", tmp_path / "quorum.secret"
    secret.write_text("a secret that only this test has\n")
    secret.chmod(0o600)
    path.write_text(
        f"""
        process.roles=broker,controller
        node.id=0
        listeners=PLAINTEXT://127.0.0.1:{ports[3]},CONTROLLER://127.0.0.1:{ports[0]}
        controller.listener.names=CONTROLLER
        controller.quorum.voters={voters}
        log.dirs={tmp_path / "data"}
        kraftpy.quorum.secret.file={secret}
        kraftpy.metrics.listener=127.0.0.1:{ports[4]}
        """
    )
    (container,) = stateful_set()["spec"]["template"]["spec"]["containers"]

    def status(name: str) -> int:
        probe = container[name]
        url = f"http://127.0.0.1:{ports[4]}{probe['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with (tmp_path / "log").open("wb") as log:
        node = warm.popen(
            [sys.executable, "-m", "kraftpy", "server", "--config", str(path)], stderr=log
        )
    try:
        deadline = time.monotonic() + 30
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children")
        while (
            "controller-started" not in (tmp_path / "log").read_text()
            or len(children.read_text().split()) < 2  # the controller and the exporter
        ):
            assert node.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(node.pid, signal.SIGSTOP)
        assert [status(name) for name in PROBES] == [200, 200, 503]
        os.kill(node.pid, signal.SIGCONT)
        assert [status(name) for name in PROBES] == [200, 200, 503]
    finally:
        node.kill()
        node.wait()


def test_the_image_copies_what_the_package_is_built_from() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", image, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert sorted(f"!{source}" for source in copied) == sorted(
        line for line in ignored if line.startswith("!")
    )
    for source in copied:
        assert (ROOT / source).exists(), source


def test_compose_mounts_what_there_is_and_its_nodes_agree() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    volumes = [
        volume.split(":")[0]
        for each in compose["services"].values()
        for volume in each.get("volumes", ())
    ]
    for source in volumes:
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
        else:
            assert source in compose["volumes"]
    home = compose["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert (ROOT / "dashboards" / "grafana" / Path(home).name).exists()
    shared = parse_properties((DEPLOY / "server.properties").read_text())
    nodes = [each for name, each in compose["services"].items() if name.startswith("kraftpy-")]
    configs = []
    for node in nodes:
        given = dict(word.removeprefix("--override=").split("=", 1) for word in node["command"])
        configs.append(BrokerConfig.from_properties({**shared, **given}))
        configs[-1].check_complete()
        voter = next(each for each in configs[-1].voters if each.id == configs[-1].node_id)
        assert voter.host == node["hostname"]
        host = next(each for each in configs[-1].listeners if each.name == "HOST")
        assert f"127.0.0.1:{host.port}:{host.port}" in node["ports"], "or clients can't follow"
    assert len({config.node_id for config in configs}) == 3
    assert len({config.voters for config in configs}) == 1
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]
    }
    assert targets["kraftpy"] == [f"{node['hostname']}:9404" for node in nodes]


def probe_address(command: list[str]) -> tuple[str, int]:
    """The bootstrap servers and the port of metrics of a `kraftpy probe ...`, parsed as it does."""
    assert command[:2] == ["kraftpy", "probe"]
    probe = app.get_command(click.Context(app), "probe")
    assert probe is not None
    given = probe.make_context("probe", command[2:]).params
    return given["bootstrap"], int(str(given["listen"]).rpartition(":")[2])


def scraped_by_compose() -> dict[str, str]:
    """By job, whether its targets are "nodes" or a "probe"; each of them has to serve metrics."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    by_host = {each["hostname"]: each for each in services.values() if "hostname" in each}
    found = {}
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for job in jobs["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            host, _, port = target.rpartition(":")
            service = by_host[host]
            if "entrypoint" in service:
                bootstrap, listens = probe_address(service["entrypoint"] + service["command"])
                assert {each.rpartition(":")[0] for each in bootstrap.split(",")} < by_host.keys()
            else:
                listens = 9404
            assert int(port) == listens
            found[job["job_name"]] = "probe" if "entrypoint" in service else "nodes"
    return found


def scraped_in_kubernetes() -> dict[str, str]:
    """The same of what the ServiceMonitor selects; a job is called as jobLabel says."""
    every = documents(DEPLOY / "kubernetes" / "kraftpy.yaml")
    (monitor,) = documents(DEPLOY / "kubernetes" / "monitoring.yaml")
    (wanted,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["endpoints"]
    found = {}
    for service in (each for each in every if each["kind"] == "Service"):
        label = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        names = [port["name"] for port in service["spec"]["ports"]]
        if label not in wanted["values"] or endpoint["port"] not in names:
            continue
        (pods,) = (
            each["spec"]["template"]
            for each in every
            if each["kind"] in ("StatefulSet", "Deployment")
            and each["spec"]["template"]["metadata"]["labels"] == service["spec"]["selector"]
        )
        (container,) = pods["spec"]["containers"]
        if container["command"] == ["kraftpy", "probe"]:
            bootstrap, listens = probe_address(container["command"] + container["args"])
            assert bootstrap == "kraftpy.kraftpy.svc:9092"
            assert {"name": "metrics", "containerPort": listens} in container["ports"]
        found[label] = "probe" if "args" in container else "nodes"
    return found


def sources_of(expr: str) -> set[str]:
    """Who serves what an expression reads."""
    metrics = [CATALOG[name] for name in metrics_in(expr)]
    return {"nodes" if metric.family.of_node else "probe" for metric in metrics}


@pytest.mark.parametrize("scraped", [scraped_by_compose, scraped_in_kubernetes])
def test_every_board_and_every_alert_has_a_source_that_is_scraped(
    scraped: Callable[[], dict[str, str]],
) -> None:
    jobs = scraped()
    assert all("kraftpy" in job for job in jobs), "or the rules don't see it"
    for where, expr in all_expressions():
        assert sources_of(expr) <= set(jobs.values()), where
    read_me = (ROOT / "dashboards" / "README.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", read_me, re.DOTALL | re.MULTILINE)
    configs = yaml.safe_load(example)["scrape_configs"]
    assert {job["job_name"] for job in configs} == set(jobs)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_yaml_has_no_key_twice(path: Path) -> None:
    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: Strict, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(set(keys)) == len(keys), (path, node.start_mark.line)
        loader.flatten_mapping(node)
        return dict(loader.construct_pairs(node, deep=True))

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert list(yaml.load_all(path.read_text(), Strict))


if __name__ == "__main__":
    GUIDE.write_text(with_events(GUIDE.read_text()))

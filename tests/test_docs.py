"""The documents say what is so: commands, options, settings and links exist, tables are current.

`python -m tests.test_docs` (`make docs`) rewrites the tables from the code.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
import pytest

from kraftpy.cli.app import app
from kraftpy.client.security_settings import KNOWN as CLIENT_SETTINGS
from kraftpy.core.config import BROKER_SETTINGS, TOPIC_SETTINGS
from kraftpy.core.config.broker import broker_setting
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey, advertised
from kraftpy.server.handlers.authorization.guards import rights
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.spark.settings import CLIENT, OPTIONS, Option
from kraftpy.testing import Broker
from tests import admin_methods, citations

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SPARK = ROOT / "kraftpy" / "spark" / "README.md"
PIPELINE = ROOT / "kraftpy" / "pipeline" / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCUMENTS = [README, CONTRIBUTING, ROOT / "CHANGELOG.md", SPARK, PIPELINE]
DOCUMENTS += [ROOT / "examples" / "README.md"]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
GUIDES = [README]
GUIDES += [ROOT / "docs" / f"{name}.md" for name in ("testing", "command_line", "migration", "faq")]
ADMIN = ROOT / "docs" / "admin.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
SECURITY = ROOT / "docs" / "security.md"
WITH_TABLES = [ADMIN, CONFIGURATION, PROTOCOL, SECURITY, SPARK]
# The settings that a newcomer meets; the rest are described by `kafka-configs --describe --all`.
BROKER_KEYS = (
    "node.id",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    "authorizer.class.name",
    "super.users",
    "allow.everyone.if.no.acl.found",
    "controller.quorum.voters",
    "kraftpy.quorum.secret.file",
    "listener.security.protocol.map",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.server.max.receive.size",
    "connections.max.reauth.ms",
    "connection.failed.authentication.delay.ms",
    "kraftpy.bootstrap.scram.file",
    "delegation.token.secret.key",
    "delegation.token.max.lifetime.ms",
    "delegation.token.expiry.time.ms",
    "delegation.token.expiry.check.interval.ms",
    "broker.rack",
    "log.dirs",
    "default.replication.factor",
    "min.insync.replicas",
    "broker.session.timeout.ms",
    "broker.disconnect.grace.ms",
    "replica.lag.time.max.ms",
    "auto.create.topics.enable",
    "num.partitions",
    "message.max.bytes",
    "log.segment.bytes",
    "log.retention.ms",
    "log.retention.bytes",
    "kraftpy.delete.policy.class",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "socket.request.max.bytes",
    "queued.max.request.bytes",
    "queued.max.response.bytes",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
    "connections.max.idle.ms",
    "log.cleaner.enable",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "offsets.retention.minutes",
    "offsets.warm.replicas",
    "group.initial.rebalance.delay.ms",
    "group.consumer.session.timeout.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.migration.policy",
    "group.coordinator.max.memory.bytes",
    "transaction.max.timeout.ms",
    "transactional.id.expiration.ms",
    "transaction.coordinator.max.memory.bytes",
    "kraftpy.metrics.listener",
    "kraftpy.metrics.partitions",
    "kraftpy.log.level",
    "kraftpy.log.format",
    "kraftpy.log.slow.request.ms",
)
# The first version that is answered, and the first release of Kafka whose clients send it. By hand:
# Kafka's releases aren't in the code.
FIRST_RELEASES = {
    ApiKey.PRODUCE: (0, "0.8"),
    ApiKey.FETCH: (0, "0.8"),
    ApiKey.LIST_OFFSETS: (0, "0.8"),
    ApiKey.METADATA: (0, "0.8"),
    ApiKey.OFFSET_COMMIT: (0, "0.8.1"),
    ApiKey.OFFSET_FETCH: (0, "0.8.1"),
    ApiKey.FIND_COORDINATOR: (0, "0.8.2"),
    ApiKey.JOIN_GROUP: (0, "0.9"),
    ApiKey.HEARTBEAT: (0, "0.9"),
    ApiKey.LEAVE_GROUP: (0, "0.9"),
    ApiKey.SYNC_GROUP: (0, "0.9"),
    ApiKey.DESCRIBE_GROUPS: (0, "0.9"),
    ApiKey.LIST_GROUPS: (0, "0.9"),
    ApiKey.SASL_HANDSHAKE: (0, "0.10"),
    ApiKey.API_VERSIONS: (0, "0.10"),
    ApiKey.CREATE_TOPICS: (0, "0.10.1"),
    ApiKey.DELETE_TOPICS: (0, "0.10.1"),
    ApiKey.DELETE_RECORDS: (0, "0.11"),
    ApiKey.INIT_PRODUCER_ID: (0, "0.11"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, "2.1"),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, "0.11"),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, "0.11"),
    ApiKey.END_TXN: (0, "0.11"),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, "3.0"),
    ApiKey.LIST_TRANSACTIONS: (0, "3.0"),
    ApiKey.TXN_OFFSET_COMMIT: (0, "0.11"),
    ApiKey.WRITE_TXN_MARKERS: (1, "2.8"),
    ApiKey.DESCRIBE_ACLS: (1, "2.0"),
    ApiKey.CREATE_ACLS: (1, "2.0"),
    ApiKey.DELETE_ACLS: (1, "2.0"),
    ApiKey.DESCRIBE_CONFIGS: (1, "1.1"),
    ApiKey.ALTER_CONFIGS: (0, "0.11"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, "2.0"),
    ApiKey.DESCRIBE_LOG_DIRS: (1, "2.0"),
    ApiKey.SASL_AUTHENTICATE: (0, "1.0"),
    ApiKey.CREATE_PARTITIONS: (0, "1.0"),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, "2.0"),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, "2.0"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, "2.0"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, "2.0"),
    ApiKey.DELETE_GROUPS: (0, "1.1"),
    ApiKey.ELECT_LEADERS: (0, "2.2"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, "2.3"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, "2.4"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, "2.4"),
    ApiKey.OFFSET_DELETE: (0, "2.4"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, "2.6"),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, "2.6"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, "2.7"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, "2.7"),
    ApiKey.DESCRIBE_QUORUM: (0, "2.7"),
    ApiKey.UPDATE_FEATURES: (0, "2.7"),
    ApiKey.ENVELOPE: (0, "2.7"),
    ApiKey.DESCRIBE_CLUSTER: (0, "2.8"),
    ApiKey.DESCRIBE_PRODUCERS: (0, "3.0"),
    ApiKey.UNREGISTER_BROKER: (0, "2.8"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, "3.7"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, "3.8"),
    ApiKey.LIST_CONFIG_RESOURCES: (0, "3.7"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, "3.8"),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, "4.1"),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, "4.1"),
    ApiKey.SHARE_FETCH: (1, "4.1"),
    ApiKey.SHARE_ACKNOWLEDGE: (1, "4.1"),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (0, "4.1"),
    ApiKey.READ_SHARE_GROUP_STATE: (0, "4.1"),
    ApiKey.WRITE_SHARE_GROUP_STATE: (0, "4.1"),
    ApiKey.DELETE_SHARE_GROUP_STATE: (0, "4.1"),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (0, "4.1"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, "4.1"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, "4.1"),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, "4.1"),
}
TOPIC_KEYS = sorted(key for key, setting in TOPIC_SETTINGS.items() if not setting.internal)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *map(list, rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def api_table() -> str:
    def row(key: ApiKey, low: int, high: int) -> list[str]:
        assert key in FIRST_RELEASES, f"{key.name} needs a row in FIRST_RELEASES of {__file__}"
        _, release = FIRST_RELEASES[key]
        return [f"{REQUEST_NAMES[key].removesuffix('Request')} ({key:d})", f"{low}-{high}", release]

    rows = (row(key, *versions) for key, versions in advertised(HANDLERS).items())
    return table(["request", "versions", "clients since Kafka"], rows)


def rights_table() -> str:
    found = rights()
    rows = (
        [f"{REQUEST_NAMES[key].removesuffix('Request')} ({key:d})", found[key]]
        for key in advertised(HANDLERS)
    )
    return table(["request", "rights"], rows)


def config_table(settings: Mapping[str, object], keys: Iterable[str], *, dynamic: bool) -> str:
    def row(key: str) -> list[str]:
        setting = settings[key]
        default = "" if setting.default is None else f"`{setting.default}`"
        mark = " *" if dynamic and setting.dynamic else ""
        return [f"`{key}`{mark}", default if default != "``" else "", setting.doc]

    return table(["key", "default", ""], map(row, keys))


def spark_table(options: Iterable[Option]) -> str:
    def row(option: Option) -> list[str]:
        meaning = option.meaning.replace("|", "\\|")
        return [f"`{option.name}`", ", ".join(option.where), option.default, meaning]

    return table(["option", "for", "default", ""], map(row, options))


def admin_tables() -> str:
    return "\n\n".join(
        f"### {kind.__name__}\n\n{table(['method', ''], admin_methods.rows(kind))}"
        for kind in admin_methods.classes()
    )


def generated(document: Path) -> dict[str, str]:
    if document == ADMIN:
        return {"admin-methods": admin_tables()}
    if document == SPARK:
        return {"options": spark_table(OPTIONS), "client-options": spark_table(CLIENT)}
    if document == SECURITY:
        return {"rights": rights_table()}
    if document == PROTOCOL:
        return {"apis": api_table()}
    return {
        "broker-configs": config_table(BROKER_SETTINGS, BROKER_KEYS, dynamic=True),
        "topic-configs": config_table(TOPIC_SETTINGS, TOPIC_KEYS, dynamic=False),
    }


def with_tables(document: Path) -> str:
    text = document.read_text()
    for name, content in generated(document).items():
        pattern = rf"(<!-- {name}: begin \(make docs\) -->\n).*?(<!-- {name}: end -->)"
        text, count = re.subn(
            pattern, lambda m, c=content: f"{m[1]}{c}\n{m[2]}", text, flags=re.DOTALL
        )
        assert count == 1, f"{document.name} has no place for the table {name}"
    return text


def blocks(language: str, documents: Iterable[Path] = GUIDES) -> list[str]:
    """The fenced blocks of README and the guides, or of others, in this language."""
    text = "\n".join(document.read_text() for document in documents)
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [content for name, content in fenced if name == language]


def examples() -> list[str]:
    """Those of the guides that are tests."""
    return [block for block in blocks("python") if "def test_" in block]


def commands() -> list[str]:
    """The guides' `kraftpy ...` lines, without what is piped in or out and without remarks."""
    found = []
    for line in "".join(blocks("")).splitlines():
        if start := re.search(r"(?:^|\| )(?=kraftpy \w)", line):
            found.append(re.split(r" {2,}| > ", line[start.end() :])[0])
    return list(dict.fromkeys(found))


def scripts() -> list[str]:
    """The same of all documents' blocks for a shell, where something may stand before it."""
    text = "".join(blocks("sh", DOCUMENTS)).replace("\\\n", " ")
    found = re.findall(r"^(?:[A-Z]+=\S+ |.* \| )?(kraftpy \w[^|>#\n]*)", text, re.MULTILINE)
    return list(dict.fromkeys(line.strip() for line in found))


@pytest.mark.parametrize("document", WITH_TABLES, ids=lambda document: document.name)
def test_the_tables_are_current(document: Path) -> None:
    assert document.read_text() == with_tables(document), f"{document.name} is old: make docs"


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 10
    assert len(scripts()) > 10


@pytest.mark.parametrize("line", [*commands(), *scripts()])
def test_a_command_of_the_readme_is_accepted(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed down to the last option, not run, in a folder that has the files it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("server.properties", "orders.txt", "offsets.csv"):
        (tmp_path / name).touch()
    command: click.Command = app
    words = shlex.split(line)[1:]
    context = click.Context(app, info_name="kraftpy")
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r}"
        command, context = found, click.Context(found, context, info_name=name)
    command.parse_args(context, words)


def test_every_command_is_in_the_guide() -> None:
    def verbs(command: click.Command, name: str) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield name
            return
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from verbs(found, f"{name} {each}")

    shown = " ".join(commands()) + " "
    missing = [name for name in verbs(app, "kraftpy") if f"{name} " not in shown]
    assert not missing, f"docs/command_line.md lacks an example of {missing}"


def test_the_first_release_of_each_api_is_told() -> None:
    """A version that we drop or add moves it."""
    announced = advertised(HANDLERS)
    differ = sorted(key.name for key in FIRST_RELEASES.keys() ^ announced.keys())
    assert not differ, f"in FIRST_RELEASES here, or announced, but not both: {differ}"
    for key, (low, high) in announced.items():
        first, _ = FIRST_RELEASES[key]
        assert first == low <= high, key


def test_settings_in_prose_exist() -> None:
    """`key=value` and `-c key=value` outside of the tables, whose keys come from the code."""
    text = "".join(document.read_text() for document in [*GUIDES, CONFIGURATION])
    named = re.findall(r"[`\s]([a-z]+(?:\.[a-z]+)+)=", text)
    assert len(named) >= 4
    known = {*TOPIC_SETTINGS, *CLIENT_SETTINGS, "bootstrap.servers"}
    assert not {key for key in named if broker_setting(key) is None and key not in known}


def test_words_of_the_glossary_are_in_use() -> None:
    glossary = re.findall(r"^\| `(\w+)(?:\.\.\.)?` \|", CONTRIBUTING.read_text(), re.MULTILINE)
    assert len(glossary) >= 5
    code = "".join(path.read_text() for path in (ROOT / "kraftpy").rglob("*.py"))
    assert [word for word in glossary if not re.search(rf"def _?{word}|{word} ?[:=]", code)] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z]+)", document.read_text()))
        assert named <= targets, (document.name, named - targets)


def test_the_guides_claim_no_speed() -> None:
    """What is measured is in docs/performance.md, with the command that measures it."""
    claims = re.findall(
        r"\d+ ?[MG]i?B/s|(?:twice|times) (?:as|faster)[^.]*|in (?:about )?[\d.]+ m?s\b",
        "".join(document.read_text() for document in [*GUIDES, CONFIGURATION, PROTOCOL]),
    )
    assert not claims


def test_a_file_of_a_targets_name_is_not_taken_for_its_result() -> None:
    """`kraftpy pipeline report` makes a folder `report`, and make would have nothing to do."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets == set(phony.split())


@pytest.mark.parametrize(
    ("arguments", "group"), [("", "test"), ("spark read", "spark"), ("--json x spark", "spark")]
)
def test_a_bench_installs_what_it_measures(arguments: str, group: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", f"BIN={tmp_path}", f"ARGS={arguments}", "bench"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"--group (\w+)", done.stdout) == [group]


def anchors_of(document: Path) -> set[str]:
    """What a link into the document may name: its titles, as GitHub spells them."""
    return {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors_of(path), target
    for path in re.findall(r"`((?:kraftpy|tests)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), path


def test_the_readme_tests_pass(tmp_path: Path) -> None:
    assert len(examples()) == 5
    for number, example in enumerate(examples()):
        (tmp_path / f"test_readme_{number}.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    command += ["--timeout=30", "--timeout-method=thread"]  # one that hangs shows where
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_the_readme_program_runs(kraftpy: Broker) -> None:
    """As it stands there, but for the address, and for the end that it doesn't have."""
    (program,) = [block for block in blocks("python") if "def main" in block]
    program = program.replace("127.0.0.1:9092", kraftpy.bootstrap)
    program = re.sub(r"( +)await consumer.commit\(\)\n", r"\g<0>\1break\n", program)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "b'table 4' b'one coffee'\n", done.stderr


# -- citations


def test_every_citation_leads_somewhere() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in citations.files()
        if path not in (Path(__file__), Path(citations.__file__))
        for problem in citations.problems(citations.words_of(path), path.parent)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_citations_to_check() -> None:
    """Of each kind; nobody has moved them to where this test doesn't look."""
    words = " ".join(citations.words_of(path) for path in citations.files() if path.suffix == ".py")
    for kind, least in (("docs/", 25), ("rule ", 60), ("decision ", 10), ("seed 00", 6)):
        assert words.count(kind) >= least, kind


def test_every_rule_has_a_module_and_a_test() -> None:
    assert len(citations.rules()) > 60
    wrong = [problem for rule in citations.rules() for problem in citations.problems_of(rule)]
    assert not wrong, "\n".join(wrong)


def test_a_number_is_that_of_one_rule() -> None:
    counted = Counter(rule.number for rule in citations.rules())
    assert [number for number, count in counted.items() if count > 1] == []


def test_parameters_of_named_tests_exist() -> None:
    """`test_scenario[divergence]`: only pytest knows which there are."""
    named = [node_id for rule in citations.rules() for node_id in rule.tests if "[" in node_id]
    assert len(named) > 5
    node_ids = []
    for each in named:
        (path,) = citations.files_of(each)
        node_ids.append(f"{path.relative_to(ROOT)}::{each.partition('::')[2]}")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *node_ids], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_is_written_is_described() -> None:
    """Names and endings that storage and quorum give their files stand in docs/formats.md."""
    described = (ROOT / "docs" / "formats.md").read_text()
    named = citations.file_names("storage", "quorum")
    assert len(named) > 20
    assert {name for name in named if name not in described} == set()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("as docs/nothing.md says", "there is no docs/nothing.md"),
        ("see architecture.md, decision 3", "there is no architecture.md"),
        ('docs/rules.md, "Of nothing"', "docs/rules.md has no section 'Of nothing'"),
        ("docs/architecture.md, decisions 4 and 99", "docs/architecture.md has no decision 99"),
        ("(rules 22 and 998 to 999)", "docs/rules.md has no rule 998"),
        ("Rule 0 it is", "docs/rules.md has no rule 0"),
        ("seed 099", "docs/architecture.md has no seed 099"),
        ("traps 1, 3", "'traps 1' is a citation of nothing: name a rule"),
    ],
)
def test_a_citation_of_nothing_is_found(words: str, problem: str) -> None:
    assert problem in list(citations.problems(words, ROOT / "tests"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("| 1 | so | KIP-1 | `core/none.py` | `test_docs.py` |", "there is no module core/none.py"),
        ("| 1 | so | KIP-1 | `core/log.py` | `test_docs.py` |", "there is no module core/log.py"),
        ("| 1 | so | KIP-1 | `connection.py` | `test_docs.py` |", "connection.py is the module of"),
        ("| 1 | so | KIP-1 | `storage/log.py` | `test_none.py` |", "there is no test test_none.py"),
        (
            "| 1 | so | KIP-1 | `storage/log.py` | `test_docs.py::test_none` |",
            "there is no test test_docs.py::test_none",
        ),
        ("| 1 | so | KIP-1 | `storage/log.py` | none yet |", "rule 1 has no test"),
        ("| 1 | so | KIP-1 |  | `test_docs.py` |", "rule 1 has no module"),
        ("| 1 | so |  | `storage/log.py` | `test_docs.py` |", "not where it comes from"),
    ],
)
def test_a_rule_that_leads_nowhere_is_found(line: str, problem: str) -> None:
    assert any(problem in each for each in citations.problems_of(citations.rule_of(line)))


def test_citations_are_found_where_lines_break(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""As it is (rule\n998)."""\nx = "rule 997"\n# says docs/none.md, decision\n# 99\n'
    )
    assert list(citations.problems(citations.words_of(path), tmp_path)) == [
        "there is no docs/none.md",
        "docs/architecture.md has no decision 99",
        "docs/rules.md has no rule 998",
    ]


if __name__ == "__main__":
    for each in WITH_TABLES:
        each.write_text(with_tables(each))

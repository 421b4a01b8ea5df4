"""What `kraftpy dev` writes for brokers that are added to a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kraftpy.cli.common import Failure
from kraftpy.cli.nodes import prepare
from kraftpy.core.config import parse_properties


def grown(root: Path, brokers: int, settings: str = "") -> list[dict[str, str]]:
    given = dict([settings.split("=")]) if settings else {}
    prepared = prepare(root, brokers, None, {None: given}, ephemeral=False)
    return [parse_properties(node.config_path.read_text()) for node, _ in prepared.nodes]


def test_three_brokers_and_their_voters_stay_as_they_are(tmp_path: Path) -> None:
    before = grown(tmp_path, 3, "num.partitions=5")
    secret = (tmp_path / "quorum.secret").read_text()
    *same, added = grown(tmp_path, 4)
    assert same == before
    assert (tmp_path / "quorum.secret").read_text() == secret
    assert added["node.id"] == "4"
    assert added["process.roles"] == "broker"
    assert added["log.dirs"] == str(tmp_path / "node4" / "data")
    assert "CONTROLLER" not in added["listeners"]
    own = {"node.id", "process.roles", "listeners", "log.dirs", "kraftpy.metrics.listener"}
    assert {key: added[key] for key in added.keys() - own} == {
        key: before[0][key] for key in before[0].keys() - own
    }
    addresses = [each[key] for each in (*before, added) for key in sorted(own) if "listen" in key]
    assert len(set(addresses)) == len(addresses)


def test_what_follows_from_their_number_follows_it_unless_somebody_has_set_it(
    tmp_path: Path,
) -> None:
    grown(tmp_path, 1, "offsets.topic.replication.factor=2")
    settings = grown(tmp_path, 3)
    assert {each["transaction.state.log.replication.factor"] for each in settings} == {"3"}
    assert {each["transaction.state.log.min.isr"] for each in settings} == {"2"}
    assert {each["offsets.topic.replication.factor"] for each in settings} == {"2"}


def test_what_one_broker_has_for_itself_is_not_for_others(tmp_path: Path) -> None:
    grown(tmp_path, 2)
    path = tmp_path / "node2" / "server.properties"
    path.write_text(path.read_text() + "broker.rack=b\nadvertised.listeners=PLAINTEXT://x:1\n")
    one, two, three = grown(tmp_path, 3)
    assert two["broker.rack"] == "b"
    assert "broker.rack" not in one
    assert "broker.rack" not in three
    assert "advertised.listeners" not in three


def test_what_cannot_be_used_adds_nobody(tmp_path: Path) -> None:
    grown(tmp_path, 1)
    before = {path: path.read_text() for path in tmp_path.rglob("server.properties")}
    with pytest.raises(Failure):
        grown(tmp_path, 2, "num.partitions=none")
    assert {path: path.read_text() for path in tmp_path.rglob("server.properties")} == before


def test_a_copy_has_its_own_data_and_a_link_or_a_folder_of_ones_own_stays(tmp_path: Path) -> None:
    first, copy, link = tmp_path / "first", tmp_path / "copy", tmp_path / "link"
    own = tmp_path / "disk" / "node2" / "data"
    prepare(first, 2, 0, {2: {"log.dirs": str(own)}}, ephemeral=False)
    (first / "node1" / "data").mkdir()
    (first / "node1" / "data" / "meta.properties").touch()
    before = grown(first, 2)
    shutil.copytree(first, copy)
    link.symlink_to(first)
    assert grown(link, 2) == before
    assert grown(first, 2) == before
    one, two = grown(copy, 2)
    assert one["log.dirs"] == str(copy / "node1" / "data")
    for each in (one, two):
        assert each["kraftpy.quorum.secret.file"] == str(copy / "quorum.secret")
    assert two["log.dirs"] == str(own)
    assert grown(first, 2) == before

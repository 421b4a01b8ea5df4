"""`kraftpy completion`: which parameters are completed, and what is installed."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kraftpy.cli import completion
from kraftpy.cli.app import app

ANSWERS = {"topics": ["orders", "orders-2", "pay"], "groups": ["kitchen", "bar"]}


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(ctx: click.Context, kind: str) -> list[str]:
        return ANSWERS[kind]

    monkeypatch.setattr(completion, "_names", names)


def completed(line: str) -> list[str]:
    *words, incomplete = line.split(" ")
    found = ShellComplete(app, {}, "kraftpy", "_KRAFTPY_COMPLETE").get_completions(
        words, incomplete
    )
    return [each.value for each in found]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("top", ["topic"]),
        ("topic tr", ["trim"]),
        ("topic trim --d", ["--dry-run"]),
        ("topic describe or", ["orders", "orders-2"]),
        ("topic describe orders or", ["orders", "orders-2"]),
        ("consume p", ["pay"]),
        ("consume pay -g ", ["kitchen", "bar"]),
        ("produce p", ["pay"]),
        ("group describe k", ["kitchen"]),
        ("group seek kitchen -t or", ["orders", "orders-2"]),
        ("group offsets show b", ["bar"]),
        ("cluster reassign -t p", ["pay"]),
        ("acl add --topic or", ["orders", "orders-2"]),
        ("acl check --group k", ["kitchen"]),
        ("acl add --transactional-id or", []),
        ("pipeline load pay lake --group k", ["kitchen"]),
        ("pipeline mirror pay --group b", ["bar"]),
        ("pipeline mirror pay --to-topic p", []),  # of another cluster
        ("pipeline write lake pay --topic or", ["orders", "orders-2"]),
        ("topic create or", []),  # a new one
        ("topic create t -c or", []),
        ("topic describe -b or", []),
    ],
)
def test_what_is_completed(line: str, names: list[str]) -> None:
    assert completed(line) == names


def test_what_fails_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(ctx: click.Context, kind: str) -> list[str]:
        raise ConnectionError

    monkeypatch.setattr(completion, "_names", broken)
    assert completed("topic describe or") == []


@pytest.mark.parametrize(("shell", "rc"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_one_command_installs_it_once(
    shell: str, rc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    (tmp_path / rc).write_text("alias l=ls")  # without an end of the line
    for _ in range(2):
        result = CliRunner().invoke(app, ["completion", "--install"])
        assert result.exit_code == 0, result.output
    script = tmp_path / ".local/share/kraftpy" / f"completion.{shell}"
    assert "_KRAFTPY_COMPLETE" in script.read_text()
    line = f'[ -r "{script}" ] && . "{script}"  # kraftpy completion'
    assert (tmp_path / rc).read_text() == f"alias l=ls\n{line}\n"


def test_fish_finds_its_script_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert CliRunner().invoke(app, ["completion", "fish", "--install"]).exit_code == 0
    script = tmp_path / "fish/completions/kraftpy.fish"
    printed = CliRunner().invoke(app, ["completion", "fish"]).output
    assert script.read_text() == printed


def test_a_shell_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    result = CliRunner().invoke(app, ["completion"], standalone_mode=False)
    assert "name your shell: bash, zsh, fish" in str(result.exception)

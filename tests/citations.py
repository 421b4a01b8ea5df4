"""What comments, docstrings and documents cite, and what is wrong with it; `test_docs` asks.

How to cite, in a comment, a docstring or a document:

    docs/formats.md                            a file, from the root or from the folder of who cites
    docs/formats.md, "The quorum"              a section of it
    decision 10, decisions 4 and 10            of docs/architecture.md
    rule 5, rules 16 to 18                     of docs/rules.md
    seed 000                                   a founding document, listed in docs/architecture.md

A rule is one line in docs/rules.md: its number, what it says, its source, its modules, its tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.sources import statements

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCES = [
    ROOT / name
    for name in ("kraftpy", "pyspark_kraftpy", "tests", "deploy", "dashboards", "examples")
]
SUFFIXES = {
    ".c",
    ".go",
    ".java",
    ".js",
    ".md",
    ".py",
    ".pyi",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.glob("*.md")),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
]
# Whatever may be a citation, also where a line breaks within it.
ANY = re.compile(r"\.md\b|\b(?:rules?|decisions?|seed|traps?)[\s#/*]+\d", re.IGNORECASE)
NUMBERS = r"(\d+(?:(?:, | and | to |-)\d+)*)"


class Rule(NamedTuple):
    """A line of docs/rules.md."""

    number: int
    text: str
    source: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


# -- what a document has


@cache
def rules() -> tuple[Rule, ...]:
    lines = (DOCS / "rules.md").read_text().splitlines()
    return tuple(rule_of(line) for line in lines if re.match(r"\| \d+ \|", line))


def rule_of(line: str) -> Rule:
    number, text, source, modules, tests = (cell.strip() for cell in line.strip("| ").split(" | "))
    names = (tuple(re.findall(r"`([^`]+)`", cell)) for cell in (modules, tests))
    return Rule(int(number), text, source, *names)


@cache
def decisions() -> frozenset[int]:
    text = (DOCS / "architecture.md").read_text()
    return frozenset(map(int, re.findall(r"^### Decision (\d+): .", text, re.MULTILINE)))


@cache
def seeds() -> frozenset[str]:
    text = (DOCS / "architecture.md").read_text()
    return frozenset(re.findall(r"^\| (\d{3}) \| ", text, re.MULTILINE))


def titles(document: Path) -> set[str]:
    return set(re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE))


# -- what cites


def files() -> Iterator[Path]:
    for folder in SOURCES:
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                yield path
    yield from DOCUMENTS


@cache
def words_of(path: Path) -> str:
    """Comments and docstrings of a Python file, all of another one, in one line."""
    text = path.read_text()
    if not ANY.search(text):  # most files; taking one apart takes a while
        return ""
    if path.suffix == ".py":
        text = "\n\n".join((*docstrings(text), *comments(text)))
    # A citation may be broken where a line ends, also within a comment.
    return re.sub(r"\s+(?:(?:#|//|\*) )?", " ", text)


def docstrings(source: str) -> Iterator[str]:
    holders = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(source)
    for node in (tree, *statements(tree)):
        if isinstance(node, holders):
            yield ast.get_docstring(node) or ""


def comments(source: str) -> Iterator[str]:
    """Each block of comments, or what stands behind code."""
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string)
        elif token.type != tokenize.NL:
            yield "\n".join(block)
            block = []


def numbers(found: str) -> Iterator[int]:
    """`1, 3 and 16 to 18` one by one."""
    for part in re.split(r", | and ", found):
        first, _, last = part.replace(" to ", "-").partition("-")
        yield from range(int(first), int(last or first) + 1)


def problems(words: str, folder: Path) -> Iterator[str]:
    """What is cited here and isn't there."""
    for found in re.findall(r"(?<![\w/.<\]-])[\w./-]*\w\.md\b(?!\]\()", words):
        if not found.startswith(("build/", "/")) and not any(
            (base / found).is_file() for base in (ROOT, folder)
        ):
            yield f"there is no {found}"
    for name, title in re.findall(r'(docs/[\w-]+\.md), "([^"]+)"', words):
        if (ROOT / name).is_file() and title not in titles(ROOT / name):
            yield f"{name} has no section {title!r}"
    for found in re.findall(rf"\bdecisions? {NUMBERS}", words, re.IGNORECASE):
        yield from (
            f"docs/architecture.md has no decision {number}"
            for number in numbers(found)
            if number not in decisions()
        )
    known = {rule.number for rule in rules()}
    for found in re.findall(rf"\brules? {NUMBERS}", words, re.IGNORECASE):
        yield from (
            f"docs/rules.md has no rule {number}"
            for number in numbers(found)
            if number not in known
        )
    for found in re.findall(r"\bseed (0\d\d)\b", words):
        if found not in seeds():
            yield f"docs/architecture.md has no seed {found}"
    yield from (
        f"{found!r} is a citation of nothing: name a rule"
        for found in re.findall(r"\btraps? \d+", words)
    )


# -- modules and tests


def modules_of(name: str) -> list[Path]:
    """The modules that `package/file.py` stands for: folders in between may be left out."""
    *folders, file = name.removeprefix("kraftpy/").split("/")

    def fits(path: Path) -> bool:
        rest = iter(path.relative_to(ROOT / "kraftpy").parent.parts)
        return all(folder in rest for folder in folders)

    if (exact := ROOT / "kraftpy" / name.removeprefix("kraftpy/")).is_file():
        return [exact]
    return [path for path in sorted((ROOT / "kraftpy").rglob(file)) if fits(path)]


@cache
def names_in(path: Path) -> frozenset[str]:
    """`test_name` and `TestClass::test_name`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if is_test(each)}
        elif is_test(node):
            found.add(node.name)
    return frozenset(found)


def is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def files_of(node_id: str) -> list[Path]:
    """The files that have this test; `test_file.py::test_name`, folders before it if need be."""
    file, _, name = node_id.partition("::")
    name = name.partition("[")[0]
    end = "/" + file.removeprefix("tests/")
    candidates = [
        path for path in (ROOT / "tests").rglob(Path(file).name) if str(path).endswith(end)
    ]
    return [path for path in candidates if (name in names_in(path) if name else names_in(path))]


def problems_of(rule: Rule) -> Iterator[str]:
    if not (rule.text and rule.source):
        yield f"rule {rule.number} says nothing, or not where it comes from"
    for kind, names, paths_of in (
        ("module", rule.modules, modules_of),
        ("test", rule.tests, files_of),
    ):
        if not names:
            yield f"rule {rule.number} has no {kind}"
        for name in names:
            paths = paths_of(name)
            if not paths:
                yield f"rule {rule.number}: there is no {kind} {name}"
            elif len(paths) > 1:
                yield f"rule {rule.number}: {name} is the {kind} of {len(paths)} files"


# -- names of files


def file_names(*packages: str) -> set[str]:
    """What constants `..._FILE`, `..._SUFFIX` and `..._NAME` of these packages hold."""
    return {
        node.value.value
        for package in packages
        for path in (ROOT / "kraftpy" / package).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and re.search(r"_(FILE|SUFFIX|NAME)$", target_of(node))
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def target_of(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""

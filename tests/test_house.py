"""Owns the rules of the house, read from the source: who may import whom, one door for each SDK, what lies where."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "deploy",
    "pyproject.toml",
    "sandbox_images",
    "scheduler",
    "tests",
    "worker",
}

DOORS = {
    "boto3": "worker.store.s3",
    "botocore": "worker.store.s3",
    "redis": "worker.store.hints",
    "celery": "worker.store.doorbell",
    "kombu": "worker.store.doorbell",
    "docker": "worker.sandbox.docker",
    "anthropic": "worker.models.anthropic",
    "openai": "worker.models.openai",
    "jsonschema_rs": "worker.contract.schema",
    "github": "worker.forges.github",
    "gitlab": "worker.forges.gitlab",
}

# Beside its own package, `*.protocol` modules and worker.contract, which everybody may use.
ARROWS = {
    "scheduler": ["worker.store"],
    "worker.contract": [],
    "worker.store": [],
    "worker.sandbox": [],
    "worker.models": [],
    "worker.tools": [],
    "worker.forges": [],
    "worker.loop": ["worker.context", "worker.meter", "worker.policy", "worker.host"],
}
PROTOCOLS = {"worker.tools.tool", "worker.host"}
"""Modules of words that are not called protocol: a tool's shape, and what the loop asks of its attempt."""

FORBIDDEN = [
    r"(pypi|pythonhosted|npmjs|deb\.debian)\.(org|com)|archive\.ubuntu\.(org|com)|(ghcr|quay)\.(io|com)|docker\.(io)/",
    r"https?://[^\s\"']*/simple\b",
    r"--(extra-)?index-url[ =]",
    r"/wor[k]/",
]
"""Hosts of registries and mirrors, indexes, and a build machine's folder: what a machine uses is its own setting.
Spelled so that the list does not hold what it forbids."""


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of ours that is imported (data of the demo is not)."""
    found = {}
    for package in ("worker", "scheduler"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "repositories" in parts:
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def named(node: ast.Import | ast.ImportFrom, module: str) -> Iterator[str]:
    """Dotted names of the modules that one statement imports, ours as far down as they are modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
    for alias in node.names:
        deeper = f"{base}.{alias.name}"
        yield deeper if deeper in modules() else base


def imports(module: str) -> set[str]:
    """Every module that one of ours imports anywhere in its text, also late or for types only."""
    nodes = (node for node in ast.walk(tree(module)) if isinstance(node, ast.Import | ast.ImportFrom))
    return {name for node in nodes for name in named(node, module)}


def eager_imports(module: str) -> set[str]:
    """Those that run when the module is imported: not in functions, not for types only."""
    found: set[str] = set()
    todo: list[ast.AST] = list(tree(module).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(named(node, module))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return found


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_word(name: str) -> bool:
    """Whether a module holds only words that everybody may use."""
    return inside(name, "worker.contract") or name.endswith(".protocol") or name in PROTOCOLS


@pytest.mark.parametrize("package", ARROWS)
def test_arrows(package: str) -> None:
    """A package imports itself, words, and what the plan allows: never an implementation it should not know."""
    ours = {module for module in modules() if inside(module, package)}
    assert ours, f"{package} is gone"
    wrong = sorted(
        f"{module} imports {name}"
        for module in ours
        for name in imports(module)
        if name.split(".")[0] in ("worker", "scheduler")
        and not (is_word(name) and package != "worker.contract")
        and not any(inside(name, allowed) for allowed in [package, *ARROWS[package]])
        and name not in modules_above(package)
    )
    assert wrong == []


def modules_above(package: str) -> set[str]:
    """The empty packages around a package, which any import of it runs."""
    parts = package.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}


@pytest.mark.parametrize("sdk", DOORS)
def test_one_door(sdk: str) -> None:
    """Each SDK is imported by exactly one module, which translates its exceptions."""
    found = {module for module in modules() if any(inside(name, sdk) for name in imports(module))}
    assert found == {DOORS[sdk]}


def test_the_command_line_loads_no_sdk() -> None:
    """No module that `dawn --help` imports reaches an SDK: they load late."""
    todo = ["scheduler.cli.main"]
    seen = set(todo)
    heavy = []
    while todo:
        module = todo.pop()
        for name in eager_imports(module):
            if name.split(".")[0] in DOORS:
                heavy.append(f"{module} imports {name}")
            elif name in modules() and name not in seen:
                seen.add(name)
                todo.append(name)
    assert heavy == []


def test_help_loads_no_sdk() -> None:
    """The same, seen from outside: a process that imported the command line holds none of them."""
    program = "import sys, scheduler.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in done.stdout.split()} & set(DOORS) == set()


@pytest.mark.parametrize("module", sorted(modules()))
def test_modules_say_what_they_own_and_refuse(module: str) -> None:
    """Each module opens with what it owns and one thing it refuses to do."""
    text = ast.get_docstring(tree(module)) or ""
    assert text
    assert re.search(r"(?i)refuse", text) or modules()[module].name == "__init__.py", "what does it refuse?"


def test_nothing_happens_on_import() -> None:
    """Modules hold definitions only; calls at the top are left to `if __name__`, but for commands told to the app."""
    calls = [
        f"{module}:{node.lineno}"
        for module in modules()
        for node in tree(module).body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and not re.match(r"app\.|\w+\.register\(app\)", ast.unparse(node.value))
    ]
    assert calls == []


def test_files_stay_small() -> None:
    """A file past 400 lines hides a second noun."""
    long = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in modules().items()}
    assert {module: lines for module, lines in long.items() if lines > 400} == {}


def ignored() -> list[str]:
    return [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()]


def files() -> Iterator[Path]:
    """Every text file of the tree, without what .gitignore names."""
    skip = [*ignored(), ".git"]
    todo = [ROOT]
    while todo:
        for path in todo.pop().iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in skip):
                continue
            if path.is_dir() and not path.is_symlink():
                todo.append(path)
            elif path.is_file():
                yield path


def test_the_top_level_is_as_agreed() -> None:
    """Nothing is left lying at the top."""
    found = {
        path.name
        for path in ROOT.iterdir()
        if path.name != ".git" and not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored())
    }
    assert found == TOP_LEVEL


def test_no_program_of_ours_looks_for_modules_where_it_is_started() -> None:
    """Whoever stands in a stranger's repository runs nothing of it: each Python that we start is told so."""
    started = re.compile(r"(?<!execv\()sys\.executable, (?!\"-[PI]\")")
    assert [module for module, path in modules().items() if started.search(path.read_text())] == []


def test_tests_shadow_no_package() -> None:
    """A folder named worker or scheduler under tests/ would be imported in the package's place."""
    assert [path for name in ("worker", "scheduler") for path in (ROOT / "tests").rglob(name) if path.is_dir()] == []


def test_no_registry_or_machine_is_named() -> None:
    """The tree names no package registry, index or path of the machine it was written on."""
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for path in files():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []

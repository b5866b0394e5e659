"""Owns what a path of a repository is by its name: a test, a list of dependencies, or what a glob names. Refuses to
look into files.

In a glob `*` and `?` stay within a folder, `**` crosses any number of them, and a glob without a slash is compared
with the last part of the path only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Final

from pydantic import AfterValidator, Field

TEST_FOLDERS: Final = frozenset({"test", "tests", "__tests__", "spec", "specs", "testing"})
CODE: Final = frozenset(
    {
        *(
            "py",
            "js",
            "jsx",
            "ts",
            "tsx",
            "mjs",
            "cjs",
            "go",
            "rs",
            "java",
            "kt",
            "kts",
            "scala",
            "groovy",
            "cs",
            "fs",
        ),
        *(
            "rb",
            "php",
            "c",
            "cc",
            "cpp",
            "cxx",
            "h",
            "hpp",
            "m",
            "swift",
            "ex",
            "exs",
            "erl",
            "clj",
            "hs",
            "ml",
            "pl",
        ),
        *("t", "lua", "r", "jl", "dart", "sh", "bats", "vue", "svelte", "feature", "robot"),
    }
)
"""Endings of files that hold code: a picture below tests/ is no test."""
_TEST_NAME: Final = re.compile(
    r"""(?x) ^ (
      test_.+\.py | .+_tests?\.py | conftest\.py | tests?\.py        # Python
    | .+ [._-] (test|spec|cy|e2e) \.[cm]?[jt]sx?                     # JavaScript
    | .+_test\.(go|rs|dart|exs|cc|cpp|c) | test_.+\.(c|cc|cpp|sh|rb|jl|php)
    | .+(Test|Tests|IT|Spec)\.(java|kt|scala|groovy|cs|fs|php|swift)
    | .+_(spec|test)\.(rb|lua) | .+\.(bats|feature|robot) | .+\.t
    ) $"""
)

DEPENDENCIES: Final = (
    *(
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "requirements*.txt",
        "requirements*.in",
        "requirements/**",
        "Pipfile",
    ),
    *("constraints*.txt", "Pipfile.lock", "poetry.lock", "uv.lock", "pdm.lock", "pylock*.toml", "environment.y*ml"),
    *("package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock*"),
    *("pnpm-workspace.yaml", "Cargo.toml", "Cargo.lock", "go.mod", "go.sum", "Gemfile", "Gemfile.lock", "*.gemspec"),
    *(
        "composer.json",
        "composer.lock",
        "pom.xml",
        "build.gradle*",
        "settings.gradle*",
        "gradle.lockfile",
        "*.csproj",
    ),
    *("libs.versions.toml", "packages.lock.json", "Directory.Packages.props", "mix.exs", "mix.lock", "*.cabal"),
)
"""Globs of the files that say what a repository is built with: closed, and so in the docs."""


def _relative(glob: str) -> str:
    if glob.startswith("/") or ".." in glob.split("/") or "\0" in glob:
        raise ValueError(f"{glob!r} must be a path or glob relative to the repository, without ..")
    return glob


Glob = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(_relative)]


def first_match(globs: Iterable[str], path: str) -> str:
    """The first of the globs that names the path, "" for none."""
    return next((glob for glob in globs if _compiled(glob).fullmatch(path)), "")


def is_test(path: str) -> bool:
    """Whether a file of this path is code that tests: by its name, or by a folder that it lies in."""
    *folders, name = path.split("/")
    return _TEST_NAME.match(name) is not None or (
        name.rpartition(".")[2].lower() in CODE and any(folder.lower() in TEST_FOLDERS for folder in folders)
    )


def lists_dependencies(path: str) -> bool:
    """Whether setup should run again when this file changes."""
    return bool(first_match(DEPENDENCIES, path))


@lru_cache(maxsize=256)
def _compiled(glob: str) -> re.Pattern[str]:
    glob = glob.removeprefix("./")
    anywhere = "" if "/" in glob.rstrip("/") else "(?:.*/)?"
    if glob.endswith("/"):
        glob += "**"
    parts = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?)", glob)
    meaning = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(anywhere + "".join(meaning.get(part) or re.escape(part) for part in parts), re.DOTALL)

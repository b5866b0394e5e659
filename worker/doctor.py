"""Owns what a worker host is missing: engine, images, secrets and keys. Refuses to repair: each finding has a hint.

`python -m worker.doctor --json` prints {"checks": [{name, ok, detail, hint}]}; `dawn doctor` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from worker.contract.errors import Fault
from worker.contract.settings import Settings

KEYS = {
    "anthropic": ("DAWN_ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY"),
    "openai": ("DAWN_OPENAI_API_KEY", "OPENAI_API_KEY"),
}


@dataclass(frozen=True)
class Check:
    """ok False means that runs will fail. detail says what was found, hint what to do."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def main() -> int:
    """Print all findings as JSON. Exit code 0 when all are ok, 75 otherwise."""
    checks = list(examine(Settings(), os.environ))
    print(json.dumps({"checks": [asdict(check) for check in checks]}))
    return 0 if all(check.ok for check in checks) else 75


def examine(settings: Settings, env: Mapping[str, str]) -> Iterator[Check]:
    """Engine first: without it there are no images to look at."""
    from worker.sandbox.sandbox import DockerSandbox

    try:
        sandbox = DockerSandbox(settings)
        yield Check("engine", True, f"answers, id {sandbox.engine_id}")
    except Fault as fault:
        yield Check("engine", False, fault.message, fault.hint)
    else:
        for name in ("toolbox", "python", "node"):
            yield _asked(f"image {name}", lambda name=name: sandbox.image_id(name)[:19])  # type: ignore[misc]
        sandbox.close()
    for provider, names in KEYS.items():
        found = next((name for name in names if env.get(name, "").strip()), None)
        lost = f"runs with {provider}/... models will fail"
        if provider == "openai" and settings.openai_base_url:
            lost = "the server at DAWN_OPENAI_BASE_URL may need one"
        detail = f"{found} is set" if found else f"no key: {lost}"
        yield Check(f"key {provider}", True, detail, "" if found else f"set {names[0]} for the workers")
    yield _asked("prices", lambda: _prices(settings))
    yield _asked("secrets", lambda: _secrets(env))


def _prices(settings: Settings) -> str:
    from worker.models.prices import open_prices

    own = open_prices(settings)
    return f"{len(own.own)} of your own, {own.source}" if own.source else "those of the table"


def _secrets(env: Mapping[str, str]) -> str:
    from worker.contract.redact import redactor_from_env

    redactor_from_env(env)
    return f"{sum(name.startswith('DAWN_SECRET_') for name in env)} for repositories, all masked"


def _asked(name: str, ask: Callable[[], str]) -> Check:
    try:
        return Check(name, True, ask())
    except Fault as fault:
        return Check(name, False, fault.message, fault.hint)


if __name__ == "__main__":
    sys.exit(main())

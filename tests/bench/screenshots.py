"""Takes pictures of the pages as people see them, of an archive made for it. `tests/bench/screenshots.py FOLDER`.

Home, a batch, its groups and timeline, a run's diff and steps, two runs compared, and an approval on a phone: light
and dark. They are for a person to look at; what can be measured of the pages is a test (tests/test_browser_pages.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browsers import DESK, NOWHERE, PHONE, Window, chromium, served
from doubles import MemoryArchive
from playwright.sync_api import sync_playwright
from presentable import BEGAN, Scene, presentable
from webs import site_of

from scheduler.web.page import address

TALL = 1_020
"""Of a picture of a phone, which shows a question down to its buttons."""
NOW = BEGAN + timedelta(minutes=25)
"""While the last runs go on."""


def views(scene: Scene) -> dict[str, tuple[str, bool]]:
    """Name of a picture -> (address, whether on a phone)."""
    run, other = scene.runs["alike"][2], scene.runs["odd"][1]
    return {
        "home": ("/", False),
        "batch": (address("/batches/{batch}", batch=scene.batch), False),
        "groups": (address("/batches/{batch}/groups", batch=scene.batch), False),
        "failures": (address("/batches/{batch}/failures", batch=scene.batch), False),
        "timeline": (address("/batches/{batch}/timeline", batch=scene.batch), False),
        "spend": (address("/batches/{batch}/spend", batch=scene.batch), False),
        "run": (address("/runs/{run}", run=run), False),
        "diff": (address("/runs/{run}/diff", run=run), False),
        "steps": (address("/runs/{run}/steps", run=run), False),
        "checks": (address("/runs/{run}/checks", run=other), False),
        "review": (address("/review/{run}", run=run), False),
        "compare": (address("/compare", query={"runs": f"{run},{other}"}), False),
        "phone-approval": ("/approvals", True),
        "phone-home": ("/", True),
        "phone-batch": (address("/batches/{batch}", batch=scene.batch), True),
    }


def main(folder: Path, only: set[str], scale: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scene = presentable(MemoryArchive())  # type: ignore[arg-type]
    site = site_of(scene.archive, now=lambda: NOW)
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    with served(site) as origin, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[*options, NOWHERE])
        for name, (path, phone) in views(scene).items():
            for scheme in ("light", "dark"):
                if only and name not in only:
                    continue
                context = browser.new_context(
                    viewport=PHONE | {"height": TALL} if phone else DESK,  # type: ignore[arg-type]
                    color_scheme=scheme,  # type: ignore[arg-type]
                    device_scale_factor=scale,
                )
                window = Window(context, origin).sign_in()
                window.go(path)
                window.page.screenshot(path=folder / f"{name}-{scheme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take pictures of the pages.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0, help="Pixels of a picture for one of a page.")
    given = parser.parse_args()
    main(given.folder, set(given.only), given.scale)

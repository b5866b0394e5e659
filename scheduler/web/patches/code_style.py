"""Owns assets/code.css: the colours of code, light and dark. Refuses a colour that is hard to read: each is
moved away from the papers it stands on until its contrast is that of WCAG 2 level AA.

`python -m scheduler.web.patches.code_style` writes the sheet anew; a test compares it.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SHEET: Final = Path(__file__).parents[1] / "assets" / "code.css"
CONTRAST: Final = 4.5
"""Of WCAG 2.2, 1.4.3, for text of ordinary size."""
STYLES: Final[Mapping[str, str]] = {"light": "friendly", "dark": "github-dark"}
"""Scheme -> the style of Pygments whose hues it has."""
PAPERS: Final = ("paper", "raised", "add", "del")
"""Variables of style.css that code stands on."""
KINDS: Final = (
    "c c1 ch cm cp cpf cs k kc kd kn kp kr kt m mb mf mh mi mo il s sa sb sc dl sd s1 s2 se sh si sr ss sx "
    "na nb bp nc nd ne nf fm ni nl nn no nt nv vc vg vi o ow gh gu ge gs"
)
"""Short names of tokens that have a colour; others are ink."""


def sheet(variables: Mapping[str, Mapping[str, str]]) -> str:
    """The whole of code.css. variables: of each scheme, those of style.css."""
    light, dark = (rules(scheme, variables[scheme]) for scheme in ("light", "dark"))
    inner = "".join(f"  {line}\n" for line in dark)
    plain = "".join(f"{line}\n" for line in light)
    head = "/* The colours of code; code_style.py writes this. */\n"
    return f"{head}{plain}@media (prefers-color-scheme: dark) {{\n{inner}}}\n"


def rules(scheme: str, variables: Mapping[str, str]) -> list[str]:
    """A rule for each colour: its hue is that of the style, its lightness what can be read."""
    from pygments.styles import get_style_by_name
    from pygments.token import STANDARD_TYPES

    papers = [variables[name] for name in PAPERS]
    kinds = {short: token for token, short in STANDARD_TYPES.items()}
    found: dict[str, list[str]] = {}
    style = get_style_by_name(STYLES[scheme])
    for kind in KINDS.split():
        told = style.style_for_token(kinds[kind])
        rule = f"color: {readable(told['color'] or variables['ink'].lstrip('#'), papers)};"
        # Comments of the other scheme may lean: each says all of it.
        rule += f" font-style: {'italic' if told['italic'] else 'normal'};"
        found.setdefault(rule, []).append(f".c-{kind}")
    return [f"{', '.join(names)} {{ {rule} }}" for rule, names in found.items()]


def readable(colour: str, papers: Sequence[str]) -> str:
    """The nearest of its hue that can be read on all of them. colour, papers: `rrggbb`, with or without `#`."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(channel / 255 for channel in _channels(colour)))
    dark = sum(luminance(paper) for paper in papers) < len(papers) / 2
    for step in range(101):
        moved = min(1.0, lightness + step / 100) if dark else max(0.0, lightness - step / 100)
        made = "#" + "".join(f"{round(255 * one):02x}" for one in colorsys.hls_to_rgb(hue, moved, saturation))
        if all(contrast(made, paper) >= CONTRAST for paper in papers):
            return made
    raise ValueError(f"nothing can be read on all of {papers}")


def contrast(one: str, other: str) -> float:
    """From 1 to 21, as WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance, from 0 to 1."""
    linear = [
        one / 12.92 if (one := channel / 255) <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for channel in _channels(colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def variables_of(style: str) -> dict[str, dict[str, str]]:
    """The colours that style.css names, by scheme. style: its text."""
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in (light, dark)]
    return {"light": found[0], "dark": {**found[0], **found[1]}}


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.lstrip("#")))


if __name__ == "__main__":
    named = variables_of((SHEET.parent / "style.css").read_text(encoding="utf-8"))
    SHEET.write_text(sheet(named), encoding="utf-8")

"""Owns reading the forms of a page as a browser has them: fields, buttons, addresses. Refuses to run a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient
from webs import ORIGIN


@dataclass
class Form:
    """buttons: by their label, where each leads and what it adds."""

    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return dict(self.fields)[name]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._form: Form | None = None
        self._button: dict[str, str] | None = None
        self._label = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Form(told.get("action", ""))
            if told.get("method") == "post":
                self.forms.append(self._form)
        elif self._form is None:
            return
        elif tag == "input" and "name" in told:
            if told.get("type") not in ("checkbox", "radio") or "checked" in told:
                self._form.fields.append((told["name"], told.get("value", "")))
        elif tag == "button":
            self._button, self._label = told, ""

    def handle_data(self, data: str) -> None:
        self._label += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "button" and self._form is not None and self._button is not None:
            told = self._button
            adds = {told["name"]: told.get("value", "")} if "name" in told else {}
            self._form.buttons[" ".join(self._label.split())] = (told.get("formaction", self._form.action), adds)
            self._button = None


def forms(html: str) -> list[Form]:
    """Those that change something."""
    reader = _Reader()
    reader.feed(html)
    return reader.forms


def form_with(html: str, button: str) -> Form:
    """The first one that has this button."""
    found = next((form for form in forms(html) if button in form.buttons), None)
    assert found is not None, f"no form has {button}: {[list(form.buttons) for form in forms(html)]}"
    return found


def press(client: TestClient, form: Form, button: str, **words: str | list[str]) -> Any:
    """Send it with that button; words: what a person has put into its fields. The answer, not followed."""
    to, adds = form.buttons[button]
    data: dict[str, Any] = {}
    for name, value in [*form.fields, *adds.items()]:
        data.setdefault(name, []).append(value)
    return client.post(to, data={**data, **words}, headers={"origin": ORIGIN}, follow_redirects=False)

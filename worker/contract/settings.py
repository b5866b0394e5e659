"""Owns every setting of a deployment, `DAWN_*`, typed in one place. Refuses to be read below the process edge:
main functions make one Settings and pass it down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from worker.contract.task import USD_MAX, Frozen, Limits

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
ProgramName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]


def _words(value: object) -> object:
    """`a, b` as its words."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]
"""Words between commas or blanks."""
HeaderName = Annotated[str, Field(pattern=r"^([A-Za-z0-9-]+)?$", max_length=100)]


def _state_dir() -> Path:
    return Path.home() / ".local" / "share" / "dawnfleet"


class Rate(Frozen):
    """What all workers together may ask of a provider's account in a minute; None for no bound. tokens_per_min: in
    and out."""

    requests_per_min: Count | None = None
    tokens_per_min: Count | None = None

    @model_validator(mode="after")
    def _bounds_something(self) -> Rate:
        if self.requests_per_min is None and self.tokens_per_min is None:
            raise ValueError("give requests_per_min, tokens_per_min or both")
        return self


class Settings(BaseSettings):
    """One deployment. Nested values use two underscores: `DAWN_LIMITS__STEPS=50`.

    archive: `file:///...` or `s3://bucket/prefix`. redis_url: None means the embedded server.
    docker_url: None means the default socket; Docker's own DOCKER_HOST is read where ours is not set.
    state_dir: sockets, spools and the embedded server's files, none of it truth; and the archive, where `archive`
    names no other place.
    store_images: keep images that no registry has in the archive, once each, so that runs can go on and be forked on
    hosts that lack them. Uncompressed: 254 MB for `python`, 408 MB for `node`, and as much again for each `setup`.
    model_programs: what a task may name as `command:NAME`, each with its command line: JSON, or one
    `DAWN_MODEL_PROGRAMS__NAME` each (worker/models/program.py).
    rates: how fast each account may be asked, by provider (`anthropic`, `openai`) or by the name of a model program
    or entry point: `DAWN_RATES__OPENAI__REQUESTS_PER_MIN=60`, `DAWN_RATES__OPENAI__TOKENS_PER_MIN=100000`.
    max_runs: how many runs may be at work at a time for each account, named as in `rates`:
    `DAWN_MAX_RUNS__OPENAI=20`.
    interactive_reserve: the share of all slots, rounded down, that batches leave free for `dawn run`.
    tools: a YAML list of tools that every task submitted here brings, as `tools` of a manifest does (OwnTool).
    before_call: `command:/path/to/program` or `python:module:function`, asked before each call
    (worker/before_call.py).
    day_budget_usd: what all runs of the deployment may spend on models in one day (UTC); None for no bound.
    prices: a file of prices that go before the table we bring (worker/models/prices.py).
    deliver: workers also take the lane `deliver`: for those that hold the tokens of forges, as `DAWN_SECRET_<NAME>`.
    web_host, web_port: where `dawn web` and `dawn up` answer browsers; 0 is any free port.
    web_hosts: other names that browsers call the pages by, with the port where it is not the usual one. web_tokens: a
    file of lines `name viewer|reviewer token` (web/door/tokens.py). web_identity_header: the header in which a
    reverse proxy names who signed in there, "" to believe none; web_reviewers: which of these decide; web_proxies:
    addresses or networks that it is believed from, none for this machine.
    reports_dir: where the scheduler puts the files that `notify` of manifests asks for; None for
    `<state_dir>/reports`.
    """

    model_config = SettingsConfigDict(
        env_prefix="DAWN_", env_nested_delimiter="__", frozen=True, extra="ignore", populate_by_name=True
    )

    state_dir: Path = Field(default_factory=_state_dir)
    archive: str | None = None
    redis_url: str | None = None
    limits: Limits = Limits()

    s3_endpoint_url: str | None = None
    s3_region: str = "us-east-1"
    s3_path_style: bool = True
    s3_access_key_id: str | None = Field(default=None, repr=False)
    s3_secret_access_key: str | None = Field(default=None, repr=False)
    s3_part_bytes: Count = 16 * 2**20

    docker_url: Annotated[str | None, Field(validation_alias=AliasChoices("DAWN_DOCKER_URL", "DOCKER_HOST"))] = None
    ca_bundle: Path | None = None
    parked_max: Count | None = None
    prepared_images_bytes: Count = 20 * 2**30
    store_images: bool = True

    tools: Path | None = None
    model_programs: dict[ProgramName, str] = {}
    rates: dict[ProgramName, Rate] = {}
    max_runs: dict[ProgramName, Count] = {}
    interactive_reserve: Annotated[float, Field(ge=0, lt=1)] = 0.1
    openai_base_url: str | None = None
    anthropic_base_url: str | None = None
    prices: Path | None = None
    day_budget_usd: Annotated[float, Field(gt=0, le=USD_MAX)] | None = None
    reports_dir: Path | None = None

    worker_slots: Count = 4
    deliver: bool = False
    lease_ttl_s: Seconds = 45
    heartbeat_s: Seconds = 10
    own_deadline_s: Seconds = 30
    hint_poll_s: Seconds = 1
    inbox_poll_s: Seconds = 10
    janitor_interval_s: Seconds = 15
    ring_again_s: Seconds = 45
    relist_s: Seconds = 60
    tick_s: Seconds = 0.5
    decision_poll_s: Seconds = 15
    drain_soft_s: Seconds = 60
    infra_backoff_s: tuple[float, ...] = (30, 120, 600)
    spool_bytes: Count = 2**30
    decision_expiry_s: Seconds = 7 * 86400
    retention_days: Count = 90

    before_call: str | None = None
    before_call_timeout_s: Seconds = 10

    web_host: str = "127.0.0.1"
    web_port: Annotated[int, Field(ge=0, le=65535)] = 8420
    web_hosts: Words = ()
    web_tokens: Path | None = None
    web_identity_header: HeaderName = ""
    web_reviewers: Words = ()
    web_proxies: Words = ()

    @property
    def archive_url(self) -> str:
        """The archive, `file://<state_dir>/archive` when none was named."""
        return self.archive or f"file://{self.state_dir / 'archive'}"

    @property
    def reports_folder(self) -> Path:
        return self.reports_dir or self.state_dir / "reports"

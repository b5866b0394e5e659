"""Owns the way from a model's name to a model. Refuses to import a provider's SDK: that waits for the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from worker.contract.errors import ProviderFault, UsageFault
from worker.contract.events import Reply
from worker.contract.model_name import parse_model_name
from worker.contract.script import parse_script
from worker.contract.settings import Settings
from worker.contract.task import Task
from worker.models.anthropic import AnthropicModel
from worker.models.call import Account
from worker.models.entry import installed, open_entry
from worker.models.fallback import FallbackModel
from worker.models.held import HeldModel, Holds
from worker.models.openai import OpenAIModel
from worker.models.paced import PacedModel, Pacing
from worker.models.prices import TABLE_ALONE, Prices
from worker.models.processes import Programs, model_secrets
from worker.models.program import ProgramModel
from worker.models.protocol import Model
from worker.models.replay import ReplayModel
from worker.models.scripted import ScriptedModel


def open_model(
    task: Task,
    settings: Settings,
    *,
    secrets_env: Mapping[str, str],
    recorded: Callable[[str], Sequence[Reply]],
    programs: Programs,
    holds: Holds,
    pacing: Pacing,
    prices: Prices = TABLE_ALONE,
) -> Model:
    """The model that task.model names, with its fallbacks behind it.

    secrets_env: the worker's environment; a provider's key is `DAWN_<PROVIDER>_API_KEY`, else
    `<PROVIDER>_API_KEY`. recorded: replies of the model phase of the run it is given, for `replay:RUN`. programs:
    those that `command:NAME` may name. holds, pacing: of accounts, shared by all workers. prices: the deployment's.

    Raises InvalidFault for an unknown name, program or entry point or a script that does not parse, UsageFault for
    `none`, and ProviderFault (auth), which names the variable, for a missing key. An OpenAI-compatible server at
    `DAWN_OPENAI_BASE_URL` may be asked without one.
    """

    def shared(model: Model, account: str, rated: str, *, cache_is_free: bool = False) -> Model:
        """The model as all workers ask it. rated: what the settings call its rate."""
        if (rate := settings.rates.get(rated)) is not None:
            model = PacedModel(model, account, task.batch, rate, pacing, cache_is_free)
        return HeldModel(model, account, holds)

    def opened(text: str) -> Model:
        name = parse_model_name(text)
        match name.provider:
            case "none":
                raise UsageFault("a task with model none has no model to ask")
            case "scripted":
                return ScriptedModel(text, parse_script(task.script or "", name.name))
            case "replay":
                return ReplayModel(text, recorded(name.name))
            case "anthropic":
                account = _account("anthropic", settings.anthropic_base_url, settings, secrets_env)
                asked = AnthropicModel(text, name.name, account, prices)
                return shared(asked, account.id, "anthropic", cache_is_free=True)
            case "openai":
                account = _account("openai", settings.openai_base_url, settings, secrets_env)
                return shared(OpenAIModel(text, name.name, account, prices), account.id, "openai")
            case "command":
                program, _, model = name.name.partition("/")
                programs.check(program)
                return shared(ProgramModel(text, program, model, programs), text, program)
            case "python":
                entry = name.name.partition("/")[0].lower()
                return shared(open_entry(text, name.name, model_secrets(secrets_env)), text, entry)

    models = [opened(text) for text in (task.model, *task.fallbacks)]
    return models[0] if len(models) == 1 else FallbackModel(task.model, tuple(models))


def check_rates(settings: Settings) -> None:
    """Raises UsageFault for a rate of what no task here can name."""
    names = {"anthropic", "openai", *settings.model_programs, *(name.lower() for name in installed())}
    if unknown := sorted(settings.rates.keys() - names):
        raise UsageFault(
            f"DAWN_RATES: nothing that is asked here is called {unknown[0]}",
            hint=f"known are {', '.join(sorted(names))}",
        )


def _account(provider: str, base_url: str | None, settings: Settings, env: Mapping[str, str]) -> Account:
    plain = f"{provider.upper()}_API_KEY"
    key_name = f"DAWN_{plain}" if env.get(f"DAWN_{plain}", "").strip() else plain
    key = env.get(key_name, "").strip()
    if not key and not (provider == "openai" and base_url):
        raise ProviderFault("auth", f"no key for {provider}", hint=f"set DAWN_{plain} or {plain}")
    return Account(provider, key, key_name, base_url, settings.ca_bundle)

"""Owns what a person can do about a failure, one line for each reason of the closed set. Refuses to guess more."""

from __future__ import annotations

from typing import Final

from worker.contract.events import Failure

_ADVICE: Final[dict[str, str]] = {
    "limit/steps": "fork from a late step with a higher steps limit, or give the task in smaller parts",
    "limit/tokens": "set context_tokens lower, or tokens higher, and fork from a late step",
    "limit/cost": "fork from a late step with a higher cost_usd, or take a cheaper model",
    "limit/wall": "look at the slow steps; fork from a late step with a higher working_time_s",
    "limit/context": "one request was too long for the model: look at the largest results",
    "limit/batch_budget": "raise the batch's budget, then retry",
    "limit/day_budget": "retry tomorrow, or raise the day's budget",
    "agent/loop": "the last steps repeat each other: fork from before them and say what to do instead",
    "agent/empty_replies": "fork from the last step that did something, or take another model",
    "agent/malformed_calls": "the model could not call its tools: fork with another model",
    "agent/failing_calls": "open the failing calls: a missing program belongs into setup or the image",
    "refused/refusal": "the model declined: word the task in another way, or take another model",
    "refused/content_filter": "the provider's filter stopped it: word the task in another way",
    "refused/guard": "the patch does what the task forbids: allow it in guards, or say so in the prompt",
    "provider/auth": "check the provider's key on the workers, then retry",
    "provider/bad_request": "read what the provider said: the model's name, or a setting it does not take",
    "provider/connection": "the same reply broke off three times: look at proxies and time limits between",
    "provider/unavailable": "the provider was away all night: retry",
    "env/repository": "check its address, and the secret that opens it",
    "env/ref": "the branch, tag or commit is not there: name another",
    "env/setup": "read what setup printed, mend it, and retry",
    "env/image": "check the image's name, and that the workers may fetch it",
    "env/check": "the checks could not be run on the start commit: try their command there",
    "infra/worker_lost": "workers died over it, most likely of memory: lower memory_bytes or the slots of a host",
    "infra/engine": "look at the hosts: dawn doctor",
    "infra/keeper": "look at the hosts: dawn doctor",
    "infra/store": "something stored is damaged or was away: dawn verify names it",
    "infra/disk": "free space on the hosts, then retry",
}


def advice(failure: Failure) -> str:
    """What to do, one line."""
    return _ADVICE[str(failure)]

"""A model for Dawnfleet: a big model begins each run, and a small one goes on."""

from collections.abc import Mapping

from worker.contract.cancel import Cancel
from worker.contract.events import Reply
from worker.models.call import Account
from worker.models.openai import OpenAIModel
from worker.models.protocol import ModelRequest

BIG_REPLIES = 5


class Thrifty:
    name = "thrifty"

    def __init__(self, address: str, key: str) -> None:
        account = Account("openai", key, "DAWN_MODEL_SECRET_THRIFTY", address)
        self.big = OpenAIModel(self.name, "acme-big", account)
        self.small = OpenAIModel(self.name, "acme-small", account)

    def reply(self, request: ModelRequest, *, timeout_s: float, cancel: Cancel) -> Reply:
        model = self.big if request.reply_index < BIG_REPLIES else self.small
        return model.reply(request, timeout_s=timeout_s, cancel=cancel)


def open_model(model: str, secrets: Mapping[str, str]) -> Thrifty:
    return Thrifty(f"http://{model}/v1", secrets["THRIFTY"])

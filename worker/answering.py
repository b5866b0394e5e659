"""Owns the edge of a data-plane process that answers one question: a request in JSON on stdin, an answer in JSON on
stdout, a fault in words on stderr. Refuses to print a secret that it knows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from worker.contract.errors import ExitCode, Fault, InvalidFault
from worker.contract.redact import redactor_from_env, without_passwords
from worker.contract.task import Frozen

Asked = TypeVar("Asked", bound=Frozen)


def answer_once(shape: type[Asked], answer: Callable[[Asked], dict[str, Any]]) -> int:
    """The process: the exit code 0, or that of the fault that `answer` raised or the request is."""
    redactor = redactor_from_env(os.environ)
    try:
        try:
            asked = shape.model_validate_json(sys.stdin.buffer.read())
        except ValueError as error:
            raise InvalidFault(f"stdin is no request: {error}") from None
        answered = answer(asked)
    except Fault as fault:
        print(f"error: {redactor.text(without_passwords(str(fault)))}", file=sys.stderr)
        return int(fault.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    print(redactor.text(json.dumps(answered)))
    return 0

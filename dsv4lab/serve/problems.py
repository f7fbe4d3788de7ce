"""What can be wrong with a request, as status codes and OpenAI's error bodies."""

from __future__ import annotations

from typing import Any

from dsv4lab.errors import EngineError, LabError, RequestError, RoomError, UsageError, WorkerDiedError

_BAD = "invalid_request_error"
_BUSY = "server_busy"
_SERVER = "server_error"
RETRY_AFTER_S = 1


class Problem(LabError):
    """An answer with an error. ``param`` is the field at fault, ``code`` a word for programs."""

    def __init__(
        self, status: int, message: str, *, kind: str = _BAD, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """When to come back, where that helps; how to authenticate, where that is missing."""
        if self.status in (429, 503):
            return {"Retry-After": str(RETRY_AFTER_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


def bad(param: str, message: str) -> Problem:
    """400: a field does not take its value."""
    return Problem(400, message, param=param)


def too_busy(message: str) -> Problem:
    """429: it would be fine at another time."""
    return Problem(429, message, kind=_BUSY, code="rate_limit_exceeded")


def unavailable(message: str) -> Problem:
    """503: there is no engine now."""
    return Problem(503, message, kind=_SERVER, code="engine_unavailable")


def problem_of(error: Exception) -> Problem:
    """The answer to what was raised. An unexpected error tells its class only: its text may be anything."""
    if isinstance(error, Problem):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, RoomError):
        return Problem(400, text, param="prompt", code="context_length_exceeded")
    if isinstance(error, RequestError | UsageError):
        return Problem(400, text, param=_field(text))
    if isinstance(error, WorkerDiedError):
        return unavailable("the engine's worker died; see GET /health")
    if isinstance(error, EngineError):
        return unavailable(f"the engine: {text}")
    if isinstance(error, LabError):
        return Problem(500, text, kind=_SERVER, code="engine_error")
    return Problem(500, f"internal error: {type(error).__name__}", kind=_SERVER, code="internal_error")


def _field(text: str) -> str | None:
    """Our errors begin with the field, then "is": the field."""
    name, found, _ = text.partition(" is ")
    return name if found and " " not in name else None

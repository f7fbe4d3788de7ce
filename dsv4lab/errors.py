"""The error tree of dsv4lab.

Every error a user can cause derives from :class:`LabError`. Its text is one line that names the thing at fault and
says what it takes; ``exit_code`` is what the command line returns for it.
"""

from __future__ import annotations


class LabError(Exception):
    """Base of all errors that a caller can act on."""

    exit_code = 2


class UsageError(LabError):
    """An argument or option is unknown, malformed or out of range."""


class EnvError(UsageError):
    """An environment variable holds a value that it does not take."""


class ConfigError(LabError):
    """A model or engine configuration is malformed or inconsistent."""


class CheckpointError(LabError):
    """Weights are missing, superfluous, of the wrong shape, or cannot be read."""


class PlanError(LabError):
    """An overlap plan names an unknown op, stream or preset, or cannot be compiled."""


class HazardError(LabError):
    """An op touched a resource that it did not declare."""


class PoolError(LabError):
    """A request does not fit the KV pool, or the pool's bookkeeping is broken."""


class RequestError(LabError):
    """A generation request is malformed: bad token, empty or overlong prompt, bad sampling parameter."""


class RoomError(RequestError):
    """A generation request is longer than the model, the pool or a limit allows."""


class TraceError(LabError):
    """A trace file is missing, unreadable or hopelessly damaged."""


class BundleError(LabError):
    """A bundle cannot be written, or is missing, damaged, of another version, or no bundle at all."""


class UnavailableError(LabError):
    """What was asked for explicitly is not available on this machine."""


class EngineError(LabError):
    """The engine failed; the text carries the worker's own message."""

    exit_code = 1


class WorkerDiedError(EngineError):
    """The worker process ended unexpectedly. ``client.restart()`` starts a new one."""


class RankDiedError(WorkerDiedError):
    """A rank of a run over several processes ended or failed, and the run with it; the text names the rank."""


class CollectiveError(EngineError):
    """Ranks could not exchange tensors: one of them is late or gone."""


class TimeoutExceededError(EngineError):
    """A call to the worker did not answer within its time limit."""

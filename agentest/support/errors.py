"""Every error that Agentest raises on purpose, and the exit statuses of the command line.

    AgentestError                 anything; raised by a mock, it ends the conversation
    ├── UsageError                nothing was run: exit status 2, one message, no traceback
    │   ├── ConfigError           configuration file, environment, command line
    │   ├── ScenarioError         one scenario file; the other files still run
    │   ├── AgentUnreachable      nobody listens at the agent's endpoint
    │   └── ServerError           the agent's own server did not start
    ├── OutputError               what we print cannot be written: exit status 2
    ├── AgentError                the agent's answer ends the conversation: the scenario fails
    │   └── UnmockedToolError     the agent called a tool that has no mock
    ├── MockError                 the scenario's own mock is broken: the scenario is errored
    ├── SessionMismatch           the session is not the one that the scenario asks for: it is errored
    ├── CannotSend                no form in the agent's protocol, or no way to it: the scenario is errored
    ├── HeldUp                    this program was held up, and it failed for that: the scenario is errored
    └── ModelError                a model could not be asked: the scenario is errored
        ├── ModelUnavailable      still no answer after the retries
        ├── InvalidAnswer         an answer, but never one of the shape that was asked for
        ├── BudgetExhausted       not asked: the run has spent what it may (`llm/budget`)
        └── CassetteError         not recorded, or the recording is damaged (`llm/cassette`)

What ends one conversation is kept in its transcript as a value (`transcript.Failure`), never passed on
as an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses of `agentest run`."""

    PASSED = 0
    FAILED = 1
    ERRORED = 2
    INTERRUPTED = 130


class AgentestError(Exception):
    """Base of all errors raised on purpose."""


class UsageError(AgentestError):
    """Something the user handed over is wrong; nothing was run."""


class ConfigError(UsageError):
    """The configuration, the environment or the command line is wrong."""


class ScenarioError(UsageError):
    """A scenario is not well formed."""


class AgentUnreachable(UsageError):
    """Nobody listens at the agent's endpoint before the first conversation."""


class ServerError(UsageError):
    """The agent's server command died or never became ready."""


class OutputError(AgentestError):
    """Standard output or standard error cannot be written to."""


class AgentError(AgentestError):
    """What the agent did ends the conversation."""


REAL_TOOLS_RUN = "let tools without a mock run, the real ones"
"""What `unmocked_tools: passthrough` does where the agent's own tool can be let through."""


class UnmockedToolError(AgentError):
    """The agent called a tool for which the scenario has no mock.

    Args:
        problem: which tool, where, and how to mock it: the begin of a sentence that goes on with "or".
        otherwise: what `unmocked_tools: passthrough` would do.
    """

    def __init__(self, problem: str, otherwise: str = "let unknown tools answer null") -> None:
        super().__init__(
            f"{problem}, or {otherwise}: --unmocked-tools passthrough, or unmocked_tools: passthrough in the "
            "configuration."
        )
        self.problem = problem


class ToolError(Exception):
    """Raise it in a mock to make the tool fail: the agent gets `{"error": "<message>"}`.

    Any other exception out of a mock's own code gives the agent the same answer and is reported as a
    mistake in the mock.
    """


class MockError(AgentestError):
    """A mock of the scenario broke in a way that is not the agent's doing."""


class ProcessExitError(AgentestError):
    """User code tried to end the process (`os._exit`)."""


class SessionMismatch(AgentestError):
    """The agent's session has another state than the one that the scenario begins with."""


class CannotSend(AgentestError):
    """What the user wants sent has no form in the agent's protocol, or lacks what that demands.

    Or this machine has no file descriptor, port or process left to send it with.
    """


class HeldUp(AgentestError):
    """What was waited for failed while this program itself did not run: nobody else is to blame.

    Args:
        problem: what failed.
        seconds: for how long the program was held up.
    """

    def __init__(self, problem: str, seconds: float) -> None:
        super().__init__(
            f"{problem}; but this program itself was held up for {seconds:.1f} s meanwhile: it was stopped, "
            "the machine was overloaded, or an async mock, metric or handler blocked the event loop. "
            "Run it again; if it happens again, mend that code or lower `concurrency`"
        )


class ModelError(AgentestError):
    """A model (simulated user, judge, deduplication) gave no usable answer."""


class ModelUnavailable(ModelError):
    """No answer from the model after all retries. `permanent`: no other question will get one either."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class InvalidAnswer(ModelError):
    """The model's answers never had the shape that was asked for."""


def unwrapped(error: BaseException) -> Iterator[BaseException]:
    """The error, and what task groups have wrapped in it, the innermost last."""
    yield error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        yield error


def described(error: BaseException) -> str:
    """The innermost error: its class, and what it says."""
    *_, inner = unwrapped(error)
    return f"{type(inner).__name__}: {inner}"

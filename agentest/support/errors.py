"""Every error that Agentest raises on purpose, and the exit statuses of the command line.

    AgentestError                 any of these; raised by a mock, it ends the conversation
    ├── UsageError                nothing was run: exit status 2, one message, no traceback
    │   ├── ConfigError           configuration file, environment, command line
    │   ├── ScenarioError         one scenario file; the other files still run
    │   ├── AgentUnreachable      nothing listens at the agent's endpoint
    │   └── ServerError           the agent's own server did not start
    ├── OutputError               output cannot be written: exit status 2
    ├── AgentError                the agent's answer ends the conversation: the scenario fails
    │   └── UnmockedToolError     the agent called a tool that has no mock
    ├── MockError                 the scenario's own mock is broken: the scenario is errored
    ├── SessionMismatch           the session differs from the scenario's: the scenario is errored
    ├── CannotSend                the agent's protocol cannot carry the message: the scenario is errored
    ├── OwnFault                  our own code raised: the scenario is errored
    ├── HeldUp                    a delay of this program caused the failure: the scenario is errored
    └── ModelError                a model could not be called: the scenario is errored
        ├── ModelUnavailable      still no answer after the retries
        ├── InvalidAnswer         an answer, but never with the requested shape
        ├── BudgetExhausted       not called: the budget is exhausted (`models/budget`)
        └── CassetteError         not recorded, or the recording is damaged (`models/tape`)

An error that ends one conversation is stored in its transcript as a value (`transcript.Failure`) and never
passed on as an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """The user's input is wrong and nothing was run."""


class ConfigError(UsageError):
    """The configuration, the environment or the command line is wrong."""


class ScenarioError(UsageError):
    """A scenario is not well-formed."""


class AgentUnreachable(UsageError):
    """Nothing listens at the agent's endpoint before the first conversation."""


class ServerError(UsageError):
    """The agent's server command exited or never became ready."""


class OutputError(AgentestError):
    """Standard output or standard error cannot be written to."""


class AgentError(AgentestError):
    """The agent's behavior ends the conversation."""


REAL_TOOLS_RUN = "let tools without a mock run, the real ones"
"""Effect of `unmocked_tools: passthrough` if the agent's own tool can run."""


class UnmockedToolError(AgentError):
    """The agent called a tool for which the scenario has no mock.

    Args:
        problem: names the tool, the place and how to mock it, as a sentence that continues with "or".
        otherwise: the effect of `unmocked_tools: passthrough`.
    """

    def __init__(self, problem: str, otherwise: str = "let unknown tools answer null") -> None:
        super().__init__(
            f"{problem}, or {otherwise}: --unmocked-tools passthrough, or unmocked_tools: passthrough in the "
            "configuration."
        )
        self.problem = problem


class ToolError(Exception):
    """Raise it in a mock to make the tool fail: the agent gets `{"error": "<message>"}`.

    Any other exception from a mock's code gives the agent the same answer and is reported as an error of the
    mock.
    """


class MockError(AgentestError):
    """A mock of the scenario failed through no fault of the agent."""


class EventLoopBlocked(BaseException):
    """An async function did not wait with `await`, so that nothing else could run."""

    def __init__(self, at: str = "") -> None:
        remedy = "an `async def` must `await` where it waits"
        super().__init__(f"it blocked the event loop for a minute{f' at {at}' if at else ''}; {remedy}")


class ProcessExitError(AgentestError):
    """User code tried to end the process (`os._exit`)."""


class SessionMismatch(AgentestError):
    """The agent's session has another state than the scenario's initial state."""


class CannotSend(AgentestError):
    """The user's message has no form in the agent's protocol, or lacks something that the protocol requires.

    Also raised if this machine has no file descriptor, port or process left to send it with.
    """


class ProgramDelayed(AgentestError):
    """A wait failed because this program itself was not running. No other party is to blame.

    Args:
        problem: the failure.
        seconds: how long the program was delayed.
    """

    def __init__(self, problem: str, seconds: float) -> None:
        super().__init__(
            f"{problem}; but this program itself did not run for {seconds:.1f} s meanwhile: it was stopped, "
            "the machine was overloaded, or an async mock, metric or handler blocked the event loop. "
            "Run it again; if it happens again, fix that code or lower `concurrency`"
        )


class OwnFault(AgentestError):
    """Code of Agentest itself raised. Nobody else is to blame, so the scenario is errored."""

    @classmethod
    def of(cls, error: BaseException, part: str = "") -> OwnFault:
        """Create it from an exception, with the end of its traceback. `part`: what raised, if known."""
        import traceback

        frames = traceback.extract_tb(error.__traceback__)[-4:]
        places = [f"{'/'.join(f.filename.split('/')[-2:])}:{f.lineno} in {f.name}" for f in reversed(frames)]
        text = f"{part and part + ': '}internal error: {type(error).__name__}: {error}"
        return cls(f"{text} (at {', called at '.join(places)})" if places else text)


class ModelError(AgentestError):
    """A model (simulated user, judge, failure grouping) gave no usable answer."""


class ModelUnavailable(ModelError):
    """The model gave no answer after all retries. `permanent`: no other question will get one either."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class InvalidAnswer(ModelError):
    """The model's answers never had the requested shape."""


def unwrapped(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that task groups have wrapped in it, innermost last."""
    yield error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
        yield error


def described(error: BaseException) -> str:
    """Describe the innermost error by its class and message."""
    *_, inner = unwrapped(error)
    return f"{type(inner).__name__}: {inner}"


@contextmanager
def errors_as(
    kind: Callable[[str], Exception],
    beginning: str,
    caught: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> Iterator[None]:
    """Raise errors of the block as another kind of error, with `beginning` before their message.

    The message of an OSError is the system's, without number and path.
    """
    try:
        yield
    except caught as error:
        raise kind(f"{beginning}{getattr(error, 'strerror', None) or error}") from None

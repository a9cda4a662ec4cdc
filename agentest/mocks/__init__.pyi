"""The names of `agentest.mocks`, for type checkers."""

from agentest.plugins.frameworks.function_tools import wrap as wrap
from agentest.plugins.frameworks.tool_gate import adk as adk
from agentest.plugins.frameworks.tool_gate import langchain as langchain
from agentest.plugins.frameworks.tool_gate import openai_agents as openai_agents
from agentest.plugins.frameworks.tool_gate import pydantic_ai as pydantic_ai

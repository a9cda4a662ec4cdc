"""The variables that a worker on another machine needs to do what would be done here.

They travel within a call, and become the worker's environment. Ray's own way (`runtime_env`, `env_vars`) is
not for keys: what stands there is written into its logs, shown by its dashboard, and stored with the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dotenv import dotenv_values

from agentest.models.access import DIRECT, key_variables
from agentest.runner.prepare import Prepared
from agentest.workers.ray.files import python_files

_NAMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_READ = re.compile(r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["']([A-Za-z_][A-Za-z0-9_]*)["']""")
_ALWAYS = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_BEGINNINGS = {
    "bedrock": ("AWS_",),
    "sagemaker": ("AWS_",),
    "vertex_ai": ("VERTEX", "GOOGLE_"),
    "gemini": ("GEMINI_", "GOOGLE_"),
    "huggingface": ("HF_", "HUGGINGFACE_"),
}


def needed_variables(prepared: Prepared, environ: Mapping[str, str]) -> dict[str, str]:
    """What the configuration names, `.env` sets, the models' providers read, and our own variables."""
    config = prepared.loaded.path
    names = set(_named_in(config)) | set(dotenv_values(config.parent / ".env"))
    for file in {*prepared.files, *python_files(prepared.request.root)}:
        names |= set(_named_in(file))
    specs = (prepared.user, prepared.judge, prepared.confirm, *prepared.named.values())
    providers = {spec.name.partition("/")[0] for spec in specs if spec}
    names |= {name for provider in providers for name in _variables_of(provider)}
    beginnings = ("AGENTEST_", *(start for provider in providers for start in _beginnings(provider)))
    return {
        name: value
        for name, value in environ.items()
        if name in names or name.startswith(beginnings) or name.lower() in _ALWAYS
    }


def _named_in(file: Path) -> Iterable[str]:
    """Variables that a file of the user's names, in a placeholder or where Python reads them."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # whoever needs the file says so
        return ()
    return (*_NAMED.findall(text), *_READ.findall(text))


def _variables_of(provider: str) -> tuple[str, ...]:
    direct = DIRECT.get(provider)
    return (*key_variables(provider), *(direct.base_variables if direct else ()))


def _beginnings(provider: str) -> tuple[str, ...]:
    return (f"{provider.upper()}_", *_BEGINNINGS.get(provider, ()))

"""The registry of features: it reads as little as it can, and says which plug-in is wrong, and where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentest.plugin import Plugin, PluginError, PluginRegistry, core_plugin
from agentest.support.errors import UsageError

Source = Callable[[], Iterator[tuple[str, str]]]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a module that hands in features, and return its name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def write(name: str, text: str, requires: str = "") -> str:
        head = f"from agentest.plugin import Plugin\nplugin = Plugin({name!r}, requires={requires!r})\n"
        (tmp_path / f"{name}.py").write_text(head + text)
        return name

    return write


def source_of(module: str, read: list[str]) -> Source:
    """Return a source with one plug-in, which notes that it was read."""

    def source() -> Iterator[tuple[str, str]]:
        read.append(module)
        yield module, "test"

    return source


def test_sources_are_read_until_the_name_is_found(module: Callable[..., str]) -> None:
    """If the first source has the feature, the others are not read."""
    read: list[str] = []
    first = module("first_plugin", 'plugin.check("a", "first_plugin:plugin")\n')
    second = module("second_plugin", 'plugin.check("b", "second_plugin:plugin")\n')
    registry = PluginRegistry([source_of(first, read), source_of(second, read)])
    found = registry.find("check", "a")
    assert found is not None
    assert found.load().name == "first_plugin"
    assert read == [first]
    assert registry.find("engine", "a") is None
    assert read == [first, second]
    assert list(registry.all("check")) == ["a", "b"]


def test_the_first_keeps_a_name(module: Callable[..., str]) -> None:
    """A configuration's plug-in never replaces what another source has, whatever was looked for before."""
    told: list[str] = []
    first = module("early_plugin", 'plugin.check("a", "x:y")\n')
    later = module("later_plugin", 'plugin.check("a", "z:w")\n')
    registry = PluginRegistry([source_of(first, []), source_of("not_there", [])], told.append)
    registry.add(later, "configuration")
    found = registry.find("check", "a")
    assert found is not None
    assert found.path == "x:y"
    assert len(told) == 1
    assert "plug-in 'later_plugin' (configuration; " in told[0]
    assert "later_plugin.py:3) hands in the check 'a', which plug-in 'early_plugin' has already (" in told[0]
    assert registry.problems == [told[0].removeprefix("agentest: ")]


def test_a_plugin_neither_ends_the_program_nor_prints_into_its_output(
    module: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a module prints goes to standard error, and an exit is an error like others."""
    told: list[str] = []
    leaves = module("leaving_plugin", "print('bye')\nraise SystemExit(3)\n")
    sound = module("staying_plugin", 'plugin.check("a", "leaving_plugin:y")\n')
    registry = PluginRegistry([source_of(leaves, []), source_of(sound, [])], told.append)
    assert list(registry.all("check")) == ["a"]
    assert "SystemExit: 3 (" in told[0]
    assert told[0].endswith("leaving_plugin.py:4)")
    assert capsys.readouterr() == ("", "bye\n")
    with pytest.raises(PluginError, match=r"check 'a' .* cannot be imported from .*: SystemExit: 3"):
        registry.get("check", "a").load()


def test_an_unknown_name_gets_a_hint(module: Callable[..., str]) -> None:
    """The error names the most similar feature of its kind."""
    one = module("commands_plugin", 'plugin.command("init", "x:y", help="Begin.")\n')
    registry = PluginRegistry([source_of(one, [])])
    with pytest.raises(UsageError, match="there is no command 'inti'; did you mean `init`"):
        registry.get("command", "inti")


def test_a_broken_plugin_is_reported_and_the_others_work(module: Callable[..., str]) -> None:
    """The message has the line that failed; a second attempt fails, too."""
    told: list[str] = []
    broken = module("broken_plugin", "1 / 0\n")
    sound = module("sound_plugin", 'plugin.check("a", "x:y")\n')
    registry = PluginRegistry([source_of(broken, []), source_of(sound, [])], told.append)
    assert list(registry.all("check")) == ["a"]
    assert "ZeroDivisionError: division by zero (" in told[0]
    assert told[0].endswith("broken_plugin.py:3)")
    for _ in range(2):
        with pytest.raises(PluginError, match="plug-in 'broken_plugin' \\(again\\) cannot be loaded"):
            registry.add(broken, "again")


def test_a_feature_says_what_it_needs(module: Callable[..., str]) -> None:
    """A missing package is named with the command that installs it; a wrong path with file and line."""
    text = 'plugin.engine("far", "package_that_is_missing.engine:open", help="Far.")\n'
    needy = module("needy_plugin", text, "far-away[fast]")
    wrong = module("wrong_plugin", 'plugin.check("a", "wrong_plugin:nothing")\n')
    registry = PluginRegistry([source_of(needy, []), source_of(wrong, [])])
    with pytest.raises(PluginError, match=r"needs 'far-away\[fast\]': pip install 'far-away\[fast\]'"):
        registry.all("engine")["far"].load()
    with pytest.raises(
        PluginError, match=r"wrong_plugin.py:3\) cannot be imported from 'wrong_plugin:nothing'"
    ):
        registry.all("check")["a"].load()


def test_the_core_says_which_plugin_it_lacks() -> None:
    """A missing built-in plug-in is an error of one sentence."""
    registry = PluginRegistry([core_plugin])
    with pytest.raises(PluginError, match=r"^agentest run --record-tools needs the plug-in 'authoring'"):
        registry.hook("agentest run --record-tools", "authoring")


def test_a_feature_is_of_its_class(module: Callable[..., str]) -> None:
    """An object of it, or a class below it; anything else is the plug-in's mistake, not a crash."""
    name = module("classy_plugin", 'plugin.check("a", "classy_plugin:Plugin")\n')
    (feature,) = PluginRegistry([source_of(name, [])]).all("check").values()
    assert feature.load(of=Plugin) is Plugin
    with pytest.raises(
        PluginError, match=r"classy_plugin.py:3\): 'classy_plugin:Plugin' is not of the class"
    ):
        feature.load(of=Path)


def test_an_exception_of_a_plugin_names_its_line(module: Callable[..., str]) -> None:
    """Unless it is an error of ours: a mistake of the user stays one sentence about it."""
    text = 'plugin.check("a", "hasty_plugin:fail")\ndef fail(error):\n    raise error\n'
    (feature,) = PluginRegistry([source_of(module("hasty_plugin", text), [])]).all("check").values()
    with pytest.raises(PluginError, match=r"failed: KeyError: 'x' \(\S+hasty_plugin.py:5\)$"):
        feature.call(KeyError("x"))
    with pytest.raises(UsageError, match=r"^name a file$"):
        feature.call(UsageError("name a file"))

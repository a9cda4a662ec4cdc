"""GitHub Actions: one-line annotations, and a summary that is valid and within its limit."""

from __future__ import annotations

import html
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import (
    broken_file,
    conversation,
    conversation_result,
    error_group,
    events,
    failing_conversation,
    failure,
    labelled_failure,
    let_go,
    run_result,
    scenario_result,
    scored,
    skipped_scenario,
    tool_call,
    turn,
    turn_evaluation,
    unfinished_turn,
    verdict,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_commands import parsed

from agentest.domain.events import RunFinished, ScenarioFinished
from agentest.domain.results import QuotaUse, Reason, ReasonKind, RunResult, Severity, Status, Verdict
from agentest.domain.transcript import Blame
from agentest.report import github
from agentest.report.console.reporter import ConsoleReporter
from agentest.report.github import (
    SHORT_LIMIT,
    SUMMARY_LIMIT,
    GitHubActionsReporter,
    annotation,
    annotation_lines,
    repository_path,
)
from agentest.report.transcripts import Transcripts
from agentest.support.terminal import clean, clean_for_command

PLENTY = SUMMARY_LIMIT
texts = st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z", "C", "Cs"])) | st.sampled_from(
    ["a|b", "```\n", "</details>", "</pre>\n\n# x", "::error::x", "100%25\r\n,:", "<!--", "\u2028\x85", "\\|"]
)
COMMAND = re.compile(r"::(\w+) file=([^,:]*),line=(\d+),title=([^,:\r\n]*)::([^\r\n]*)")


def lines(result: RunResult) -> list[str]:
    return list(annotation_lines(result, lambda file: file))


def transcripts(result: RunResult) -> Transcripts:
    """The transcripts that a reporter has stored when the run ends."""
    found = Transcripts(PLENTY)
    for scenario in result.scenarios:
        found.add(scenario)
    return found


def report_to(path: Path, result: RunResult, write: Callable[[str], None] | None = lambda line: None) -> None:
    """Report the events of a run, with the summary in a file."""
    reporter = GitHubActionsReporter(write, path.parent, path)
    for event in events(result):
        reporter.on_event(event)


def summary(result: RunResult, room: int) -> str:
    """The summary of a run that has released its conversations."""
    return github.summary(let_go(result), transcripts(result), room)


def unescaped(text: str) -> str:
    for code, char in (("%0A", "\n"), ("%0D", "\r"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def balanced(markdown: str) -> bool:
    """Return whether every <details> is closed and none is nested."""
    tags = re.findall(r"<details>|</details>", markdown)
    return tags == ["<details>", "</details>"] * (len(tags) // 2)


def failing(name: str = "no slot", **more: Any) -> Any:
    return scenario_result(name, [failing_conversation()], **more)


def talkative(text: str) -> Any:
    """A failed scenario with the text in every place."""
    held = conversation(
        text,
        [turn(user=text, agent=text, tool_calls=(tool_call(text, {text: text}, text),))],
        failure(message=text),
        unfinished_turn(1, text, tool_call(text, text)),
    )
    found = labelled_failure(label=text, metric=text, reason=text)
    result = conversation_result(held=held, failures=[found])
    return scenario_result(text, [result], errors=[error_group(text)], agent=text)


def test_failed_scenario() -> None:
    """A failed scenario is an error at its `scenario(` call, with its failing reasons."""
    [line] = lines(run_result(failing("slots: a, b")))
    level, file, number, title, message = COMMAND.fullmatch(line).groups()  # type: ignore[union-attr]
    assert (level, file, number) == ("error", "scenarios/booking.sim.py", "7")
    assert title == "slots%3A a%2C b failed"
    assert message == "create_booking not called as expected"


def test_errored_scenario() -> None:
    """An errored scenario or a file that did not load is an error with that in its title."""
    why = verdict(Status.ERRORED, "the judge's model timed out", ReasonKind.MODEL)
    assert lines(run_result(scenario_result("slow", verdict=why), broken_file())) == [
        "::error file=scenarios/booking.sim.py,line=7,title=slow errored::the judge's model timed out",
        "::error file=scenarios/broken.sim.py,line=1,title=scenarios/broken.sim.py errored::SyntaxError",
    ]


def test_failing_reasons_only() -> None:
    """Reasons that are only errored are left out of a failure."""
    reasons = (
        Reason(Status.FAILED, ReasonKind.CHECK, "too long", conversation_id="c1"),
        Reason(Status.FAILED, ReasonKind.CHECK, "too slow", conversation_id="c2"),
        Reason(Status.ERRORED, ReasonKind.MODEL, "no answer"),
    )
    [line] = lines(run_result(scenario_result(verdict=Verdict(Status.FAILED, reasons))))
    assert line.endswith("::too long%0Atoo slow")


def test_beyond_ten_failures_each_cause_has_one_annotation() -> None:
    """It is at the cause's first scenario and names the others."""
    why = verdict(Status.ERRORED, "the judge's model timed out", ReasonKind.MODEL)
    failed = [failing(f"s{n}", line=n) for n in range(1, 10)]
    assert len(lines(run_result(*failed))) == 9
    every, slow = lines(run_result(*failed, *(scenario_result(f"e{n}", verdict=why) for n in range(3))))
    assert every.startswith(
        "::error file=scenarios/booking.sim.py,line=1,title=create_booking not called as expected::"
        "9 scenarios: s1 (scenarios/booking.sim.py:1); s2 (scenarios/booking.sim.py:2)"
    )
    assert every.endswith("s9 (scenarios/booking.sim.py:9)%0Acreate_booking not called as expected")
    assert "title=the judge's model timed out::3 scenarios: e0 (" in slow


def test_nothing_to_annotate() -> None:
    """Scenarios that passed or were skipped are not annotated."""
    assert lines(run_result(scenario_result(), skipped_scenario())) == []


@pytest.mark.parametrize(
    ("severity", "level"),
    [
        (Severity.CRITICAL, "error"),
        (Severity.HIGH, "error"),
        (Severity.MEDIUM, "warning"),
        (Severity.LOW, "notice"),
    ],
)
def test_deduplicated_error(severity: Severity, level: str) -> None:
    """A deduplicated error has one annotation at its severity's level, even if the scenario passed."""
    why = Verdict(Status.PASSED)
    [line] = lines(run_result(scenario_result("s", errors=[error_group(severity=severity)], verdict=why)))
    where = f"::{level} file=scenarios/booking.sim.py,line=7"
    assert line == (
        f"{where},title={severity.label} error%3A wrong hours::s: The agent invents opening hours. (c1-F1)"
    )


def test_threshold_violations() -> None:
    """A missed threshold or pass rate is a separate warning."""
    weak = conversation_result(turns=[turn_evaluation(metrics={"helpfulness": scored(2)})])
    found = lines(run_result(scenario_result("a", [weak], thresholds={"helpfulness": 4})))
    found += lines(run_result(failing("b", thresholds={"pass_rate": 0.5})))
    assert [line for line in found if line.startswith("::warning")] == [
        "::warning file=scenarios/booking.sim.py,line=7,title=a%3A threshold"
        "::helpfulness: average 2.00 is below the threshold 4",
        "::warning file=scenarios/booking.sim.py,line=7,title=b%3A threshold"
        "::pass_rate: 0 of 1 conversations passed, the threshold is 0.5",
    ]


def test_a_missed_threshold_is_annotated_once() -> None:
    """The error refers to the warning with the numbers, and has the other reasons in full."""
    weak = conversation_result(turns=[turn_evaluation(metrics={"helpfulness": scored(2)})])
    only, warned = lines(run_result(scenario_result("a", [weak], thresholds={"helpfulness": 4})))
    assert only.endswith("::helpfulness below its threshold of 4")
    assert warned.startswith("::warning ")
    error, warned = lines(run_result(failing("b", thresholds={"pass_rate": 0.5})))
    assert "create_booking not called" in error
    assert "pass_rate" not in error
    assert "pass_rate: 0 of 1" in warned


def test_ten_annotations_of_a_level() -> None:
    """Each level has at most ten annotations, most severe first; the tenth counts the rest."""
    hours = [error_group(f"low {n}", Severity.LOW) for n in range(10)]
    groups = [error_group(f"high {n}") for n in range(5)] + [error_group("worst", Severity.CRITICAL)]
    errored = scenario_result("slow", verdict=verdict(Status.ERRORED))
    broken = scenario_result("talks", errors=groups + hours, verdict=Verdict(Status.PASSED))
    found = lines(run_result(errored, broken, *(failing(f"f{n}") for n in range(6))))
    errors = [line for line in found if line.startswith("::error")]
    titles = [re.findall("title=(.*?)::", line)[0] for line in errors]
    assert titles[:7] == [*(f"f{n} failed" for n in range(6)), "slow errored"]
    assert titles[7:] == ["critical error%3A worst", "high error%3A high 0", "4 more errors"]
    assert errors[-1].endswith("::and 4 more errors: see the summary of the job, or the log")
    assert len([line for line in found if line.startswith("::notice")]) == 10
    assert not any("more notice" in line for line in found)


def test_summary_begins_with_what_failed() -> None:
    """Failures with place and reasons come first; reports are listed with a command."""
    result = run_result(scenario_result("fine"), failing("it's | bad"), broken_file())
    text = github.summary(result, transcripts(result), PLENTY, [".agentest/results.json", "junit.xml"])
    head, table = text.split("| Status |")
    assert "Reports: <code>.agentest/results.json</code>, <code>junit.xml</code>; to look" in head
    command = re.search(r"<code>(agentest show .*)</code>", head)
    assert command
    words = shlex.split(html.unescape(command[1]))
    assert words == ["agentest", "show", ".agentest/results.json", "--scenario", "=it's | bad", "--verbose"]
    failures = html.unescape(head.partition("### Not passed\n\n")[2]).splitlines()
    assert failures[:2] == [
        "- ❌ **create_booking not called as expected** · 1 scenario",
        "  - it's | bad scenarios/booking.sim.py:7",
    ]
    assert failures[2:4] == ["- ⚠️ **SyntaxError** · 1 scenario", "  - scenarios/broken.sim.py:1"]
    assert "failed |" not in table


def test_summary_in_a_file_of_its_own(tmp_path: Path) -> None:
    """`github-actions=PATH` replaces the file with the summary and prints nothing."""
    path = tmp_path / "summary.md"
    path.write_text("old", encoding="utf-8")
    report_to(path, run_result(failing()), write=None)
    assert path.read_text(encoding="utf-8").startswith("## ❌ Agentest: 1 failed\n")


def test_agents_are_distinguished() -> None:
    """With several agents, titles have the agent; a file that did not load has none."""
    found = lines(run_result(failing(agent="a"), failing(agent="b"), broken_file()))
    titles = [title for line in found for title in re.findall("title=(.*)::", line)]
    assert titles == ["no slot (a) failed", "no slot (b) failed", "scenarios/broken.sim.py errored"]


def test_escapes() -> None:
    r"""Properties escape `%`, `\r`, `\n`, `:` and `,`; messages only the first three."""
    text = "%\r\n:,%0A"
    assert annotation("error", text, 1, text, text) == (
        "::error file=%25%0D%0A%3A%2C%250A,line=1,title=%25%0D%0A%3A%2C%250A::%25%0D%0A:,%250A"
    )


@given(texts, texts, texts)
def test_annotations_stay_one_line(file: str, title: str, message: str) -> None:
    """Any texts give one line of UTF-8 without controls, and the runner reads the texts back, with controls
    escaped."""
    line = annotation("warning", file, 3, title, message)
    line.encode()
    assert clean(line) == line
    command = parsed(line)
    assert command
    assert command.name == "warning"
    got = (command.properties.get("file", ""), command.properties.get("title", ""))
    assert [text.rstrip() for text in got] == [clean_for_command(text).rstrip() for text in (file, title)]
    assert command.data == clean_for_command(message)


def test_path_from_the_repository_root(tmp_path: Path) -> None:
    """The path starts at the nearest parent with a `.git` entry, folder or file."""
    work = tmp_path / "repo" / "packages" / "bot"
    (work / "sims").mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    assert repository_path("sims/a.sim.py", work, tmp_path) == "packages/bot/sims/a.sim.py"
    assert repository_path(str(work / "a.sim.py"), work, None) == "packages/bot/a.sim.py"
    assert repository_path("../a.sim.py", work, None) == "packages/a.sim.py"
    (work / ".git").write_text("gitdir: elsewhere")
    assert repository_path("sims/a.sim.py", work, tmp_path) == "sims/a.sim.py"


def test_path_without_a_repository(tmp_path: Path) -> None:
    """It starts at the workspace or the working directory; other paths are absolute."""
    work, other = tmp_path / "workspace" / "bot", tmp_path / "other"
    assert repository_path("a.sim.py", work, tmp_path / "workspace") == "bot/a.sim.py"
    assert repository_path("a.sim.py", work, other) == "a.sim.py"
    assert repository_path("a.sim.py", work, None) == "a.sim.py"
    elsewhere = other / "a.sim.py"
    assert repository_path(str(elsewhere), work, None) == elsewhere.resolve().as_posix()


def test_reporter(tmp_path: Path) -> None:
    """At the end of the run, annotations are printed and the summary is appended to the file."""
    said: list[str] = []
    path = tmp_path / "summary.md"
    path.write_text("# Build", encoding="utf-8")
    reporter = GitHubActionsReporter(said.append, tmp_path, path)
    reporter.on_event(ScenarioFinished(failing()))
    assert (said, path.read_text(encoding="utf-8")) == ([], "# Build")
    reporter.on_event(RunFinished(let_go(run_result(failing()))))
    assert [line.count("\n") for line in said] == [0]
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Build\n## ❌ Agentest: 1 failed\n")
    assert "<summary>no slot: c1</summary>" in text


def test_no_summary_file(tmp_path: Path) -> None:
    """Without a summary file there are only annotations."""
    said: list[str] = []
    GitHubActionsReporter(said.append, tmp_path, None).on_event(RunFinished(run_result(failing())))
    assert len(said) == 1
    assert list(tmp_path.iterdir()) == []


def test_summary_parts() -> None:
    """The summary has counts, errors by severity and violations; passing parts are folded."""
    text = summary(
        run_result(
            scenario_result("fine"),
            scenario_result("typo", errors=[error_group("spelling", Severity.LOW)]),
            failing("bad", thresholds={"pass_rate": 1}, errors=[error_group("hours", Severity.CRITICAL)]),
            broken_file(),
            skipped_scenario(),
        ),
        PLENTY,
    )
    assert text.startswith("## ❌ Agentest: 1 failed, 1 errored, 2 passed, 1 skipped\n")
    rows = re.findall(r"^\| \S+ (\w+) \| (\S+) \| (\d of \d) \| (\S+ s) \|$", text, re.M)
    assert rows == [
        ("passed", "fine", "1 of 1", "1.5 s"),
        ("passed", "typo", "1 of 1", "1.5 s"),
        ("skipped", "later", "0 of 0", "0.0 s"),
    ]
    assert text.index("| critical | hours |") < text.index("| low | spelling |")
    assert "- bad: pass_rate: 0 of 1 conversations passed, the threshold is 1\n" in text
    assert re.findall("<summary>(.*)</summary>", text) == ["2 passed, 1 skipped", "bad: c1", "Averages"]


def test_missed_goals_are_listed_below_their_threshold() -> None:
    """Each conversation that missed its goal has a row in the summary."""
    missed = [conversation_result(id, metrics={"goal_completion": scored(0, "Why.")}) for id in ("c1", "c2")]
    text = summary(run_result(scenario_result("s", missed, thresholds={"goal_completion": 1})), PLENTY)
    rows = text.partition("### Threshold violations\n\n")[2].splitlines()
    assert rows[0] == "- s: goal_completion: average 0.00 is below the threshold 1"
    assert [row[:6] for row in rows[1:3]] == ["  - c1", "  - c2"]


def test_summary_of_a_run_that_a_quota_held_up() -> None:
    """The summary says which quota held up the run."""
    text = summary(run_result(quotas=(QuotaUse("m", 9, 0), QuotaUse("n", 9, 0, 2))), PLENTY)
    assert "\nQuota of n: 2 of 9 requests refused.\n" in text
    assert "Quota of m" not in text


def test_summary_of_a_good_run() -> None:
    """A run without problems has a headline, two folds and no empty parts."""
    text = summary(run_result(), PLENTY)
    assert text.startswith(
        "## ✅ Agentest: 1 passed\n\nIn 3.2 s. Model: ollama/llama3.2. "
        "10 model calls, 1,110 tokens, 0.0000 USD.\n"
    )
    assert "###" not in text
    assert re.findall("<summary>(.*)</summary>", text) == ["1 passed", "Averages"]
    assert "left out" not in text


def test_summary_of_an_interrupted_run() -> None:
    """The summary says if a run was interrupted or ran no scenario."""
    assert "**Interrupted" in summary(run_result(interrupted=True), PLENTY)
    assert "no scenario ran" in summary(RunResult((), (), False, "", 0.0, ""), PLENTY)


def test_summary_names_agents() -> None:
    """With several agents, the table has a column for them."""
    text = summary(run_result(scenario_result(agent="a"), scenario_result(agent="b")), PLENTY)
    assert "| Scenario | Agent |" in text
    assert "| user books a morning slot | b |" in text


def test_transcript() -> None:
    """A transcript has messages, calls, problems and the unfinished turn."""
    held = conversation(
        turns=[turn(user="Hi", agent="Hello\nthere", tool_calls=(tool_call(result={"slots": []}),))],
        failure=failure(message="status 500"),
        unfinished=unfinished_turn(1, "Book it.", tool_call("book", "[1")),
    )
    result = conversation_result(held=held, failures=[labelled_failure()])
    text = summary(run_result(scenario_result("s", [result, conversation_result("c2")])), PLENTY)
    [pre] = re.findall(r"<pre>(.*?)</pre>", text, re.S)
    assert pre.splitlines() == [
        "failed: status 500",
        "c1-F1 agent_behavior_failure: false information: It is closed then.",
        "",
        "user: Hi",
        "  → check_availability(date='Tuesday')",
        '  ← {"slots": []}',
        "agent: Hello",
        "    there",
        "user: Book it.",
        "  → book(invalid arguments: '[1')",
        "  ← null",
        "ended by an error of the agent: status 500",
    ]


def test_transcript_of_labelled_failures() -> None:
    """A scenario failed by an error has transcripts of conversations with failures, even passed ones."""
    labelled = conversation_result(failures=[labelled_failure()])
    group = error_group(severity=Severity.CRITICAL)
    text = summary(
        run_result(scenario_result("s", [labelled, conversation_result("c2")], errors=[group])), PLENTY
    )
    assert re.findall("<summary>(.*)</summary>", text) == ["s: c1", "Averages"]


class _Tags(HTMLParser):
    """The tags of a document, and all text outside of them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append("/" + tag)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


@given(texts)
def test_no_text_breaks_the_summary(text: str) -> None:
    """With any texts, rows keep their cells and the only HTML is our own."""
    markdown = summary(run_result(talkative(text)), PLENTY)
    markdown.encode()
    outside = re.sub(r"<pre>.*?</pre>", "<pre></pre>", markdown, flags=re.S)
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    assert [row.count("|") for row in rows] == [6] * 7
    fold = ["details", "summary", "/summary"]
    assert _Tags(markdown).tags == [*fold, "pre", "/pre", "/details", *fold, "/details"]
    assert "`" not in outside
    assert balanced(markdown)


@given(st.lists(texts, min_size=1, max_size=12), st.integers(0, 12_000))
@settings(max_examples=200, deadline=None)
def test_summary_stays_within_its_limit(names: list[str], room: int) -> None:
    """For any limit, the summary fits, closes every fold, and says what it left out."""
    result = run_result(*(talkative(name) for name in names))
    text = summary(result, room)
    assert len(text.encode()) <= room
    assert balanced(text)
    whole = summary(result, PLENTY)
    assert text == whole or "left out: the summary stays short" in text or not text


def test_failed_scenarios_have_priority_over_errored_ones() -> None:
    """Transcripts of failed scenarios come before those of errored ones."""
    held = conversation(turns=[turn(i, agent="x" * 4000) for i in range(9)], failure=failure(Blame.MODEL))
    errored = [scenario_result(f"e{i}", [conversation_result(held=held)] * 10) for i in range(10)]
    text = summary(run_result(*errored, failing("late")), PLENTY)
    assert re.findall("<summary>(.*)</summary>", text)[:2] == ["late: c1", "e0: c1"]
    told = text.count("<pre>")
    assert 20 < told < 101
    assert f"_{101 - told} of 101 transcripts left out" in text


def test_a_duplicate_name_has_no_transcripts() -> None:
    """A file with a duplicate scenario name does not show the other's transcripts."""
    other = replace(broken_file(), name="no slot", agent="booking")
    assert summary(run_result(failing(), other), PLENTY).count("<pre>") == 1


def test_transcripts_are_left_out_first() -> None:
    """Then errors, then causes are left out, each with a note."""
    result = run_result(*(failing(f"s{i}", errors=[error_group()]) for i in range(12)))
    for room in range(1200, 9500, 37):
        text = summary(result, room)
        rows, errors = (
            12 * len(re.findall(r"^- ❌", text, re.M)),
            len(re.findall(r"^\| high \| wrong hours \| s", text, re.M)),
        )
        assert rows == 12 or not errors
        assert errors == 12 or "<pre>" not in text
        assert (rows < 12) == ("_1 of 1 causes left out" in text)
        for kept, kind in ((errors, "errors"), (text.count("<pre>"), "transcripts")):
            assert (kept < 12) == (f"_{12 - kept} of 12 {kind} left out" in text)


@pytest.mark.parametrize("before", [0, 1000, SUMMARY_LIMIT // 2, SUMMARY_LIMIT - 300, SUMMARY_LIMIT])
@pytest.mark.slow
def test_file_stays_in_its_limit(before: int, tmp_path: Path) -> None:
    """The file never exceeds 1 MiB including earlier content, which is unchanged."""
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * before)
    talks = [failing_conversation(f"c{i}") for i in range(20)]
    big = [scenario_result(f"ä{i}", talks) for i in range(200)]
    report_to(path, run_result(*big))
    content = path.read_bytes()
    assert len(content) <= SUMMARY_LIMIT
    assert content[:before] == b"x" * before
    assert balanced(content.decode())


def test_big_run_is_quick(tmp_path: Path) -> None:
    """Two hundred scenarios with megabytes of transcripts take seconds, with a short summary."""
    reply = "<ä|`>" * 200_000
    held = conversation(turns=[turn(i, agent=reply) for i in range(8)], failure=failure())
    result = conversation_result(held=held)
    path = tmp_path / "summary.md"
    start = time.process_time()  # a busy machine takes longer
    run = run_result(*(scenario_result(f"s{i}", [result] * 20) for i in range(200)))
    report_to(path, run)
    assert time.process_time() - start < 5
    content = path.read_text(encoding="utf-8")
    assert path.stat().st_size <= SHORT_LIMIT
    assert "· 200 scenarios" in content
    assert content.count("<pre>") == 1
    assert balanced(content)


def test_warnings() -> None:
    """A warning is an annotation at the scenario's line and in the summary, even if it passed."""
    result = run_result(scenario_result("fine", warnings=("find: `city` is missing",)))
    assert lines(result) == [
        "::warning file=scenarios/booking.sim.py,line=7,title=fine%3A warning::find: `city` is missing"
    ]
    assert "### Warnings\n\n- fine: find: &#96;city&#96; is missing\n" in summary(result, 10_000)


def test_reporters_need_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments, the reporters print to standard output."""
    for reporter in (GitHubActionsReporter(), ConsoleReporter(live=False)):
        for event in events(run_result(failing())):
            reporter.on_event(event)
    printed = capsys.readouterr().out
    assert printed.startswith("::error file=")
    assert "\n1 failed (1 scenario, 1 conversation) in " in printed

"""The deterministic metrics against google-adk's own, on generated data: `pytest -m adk`.

AGENTEST_ADK_PYTHON names the interpreter of an environment with google-adk[eval] 2.13.0.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import unicodedata
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from pydantic import TypeAdapter

from agentest.domain.end_reason import Ending
from agentest.domain.results import Score
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.models.port import CallKey
from agentest.plugins.adk.formats.criteria import parse_criteria
from agentest.plugins.adk.formats.eval_set import EvalCase, Invocation, text_of, tool_calls
from agentest.plugins.adk.metrics.grader_factory import make_grader
from agentest.plugins.adk.metrics.rouge import stem

PYTHON = os.environ.get("AGENTEST_ADK_PYTHON", "")
PROBE = Path(__file__).parents[2] / "support" / "adk_metrics_probe.py"
INVOCATION = TypeAdapter(Invocation)
ROUGE_CASES = 8_000
TRAJECTORY_CASES = 8_000
KEY = CallKey("a", "s", "judge")

pytestmark = [
    pytest.mark.adk,
    pytest.mark.skipif(not PYTHON, reason="AGENTEST_ADK_PYTHON names no environment with google-adk"),
]

STEMS = [
    "run",
    "walk",
    "relat",
    "condition",
    "happ",
    "enjo",
    "fl",
    "tr",
    "hop",
    "fil",
    "feed",
    "sky",
    "dy",
    "l",
]
STEMS += ["ational", "nation", "gener", "commun", "sens", "yyy", "sy2", "inn", "out", "controll"]
ENDINGS = """
s es ies ied ing ings ed eed y ly fully ally alli ousli ization ational ation ator alism iveness fulness
ousness aliti iviti biliti logi logy icate ative alize iciti ical ful ness al ance ence er ic able ible
ant ement ment ent ion tion sion ou ism ate iti ous ive ize e ll ss 2 '
"""
SUFFIXES = ENDINGS.split()
SCRIPTS = (
    "今天天气很好漢字かなカナ한국어"
    "สวัสดีครับผมชื่อน้ำ๑๒฿"
    "ສະບາຍດີຂອ້ຍ"
    "សួស្តីខ្មែរ៛"
    "မြန်မာစာ"
    "नमस्ते दुनिया"
    "مرحبا بالعالم"
    "שלום"
    "éàüßñøåœŒǅſŁı"
    "ﬁﬂﬃⅧ²½㌔①ＡｂｃﾊﾟﾞＫÅİ"
    "ΑΣΟΔΥΣσς"
    "\u0301\u0308\u20e3\ufe0f\u200d\u200b\u00a0\u3000\u1160\uffa0"
    "😀👩\u200d💻❤\ufe0f"
    "𝒜𝟘𐐀𠀀"
    "·—_'’-.,!?/\\\t\n\r\x0b\x1f\x85\u2028"
)


def a_word(random: Random) -> str:
    word = random.choice(STEMS) + "".join(random.choices(SUFFIXES, k=random.choice([0, 1, 1, 2])))
    return random.choice([word, word, word.upper(), word.title()])


def a_letter(random: Random) -> str:
    while True:
        letter = chr(random.choice([random.randrange(0x3000), random.randrange(0x110000)]))
        if unicodedata.category(letter) != "Cs":
            return letter


def a_piece(random: Random) -> str:
    kind = random.random()
    if kind < 0.6:
        return a_word(random)
    if kind < 0.9:
        return "".join(random.choices(SCRIPTS, k=random.randint(1, 6)))
    return "".join(a_letter(random) for _ in range(random.randint(1, 4)))


def texts(random: Random) -> tuple[str, str]:
    """A response and a reference that share some of their pieces."""
    size = random.choice([0, 1, 3, 8, 8, 30]) if random.random() < 0.998 else 4_000
    pieces = [a_piece(random) for _ in range(size)]
    other = [p for p in pieces if random.random() < 0.7] + [
        a_piece(random) for _ in range(random.randrange(4))
    ]
    random.shuffle(other)
    join = random.choice([" ", " ", " ", "", "\n", ", "])
    return join.join(pieces), join.join(other)


def content(text: str, random: Random) -> dict[str, Any]:
    if random.random() < 0.9:
        return {"role": "model", "parts": [{"text": text}]}
    half = len(text) // 2
    return {"parts": [{"text": text[:half]}, {"text": ""}, {"text": text[half:]}]}


def said(text: str, random: Random) -> dict[str, Any]:
    return {"user_content": {"parts": [{"text": "?"}]}, "final_response": content(text, random)}


def rouge_case(random: Random) -> dict[str, Any]:
    pairs = [texts(random) for _ in range(random.randint(1, 4))]
    threshold = random.choice([0.0, 0.5, 0.8, 1.0, 2 / 3, round(random.random(), 2)])
    return {
        "metric": "response_match_score",
        "criterion": {"threshold": threshold},
        "pairs": [[said(left, random), said(right, random)] for left, right in pairs],
    }


ARGS: list[Any] = [
    None,
    {},
    *(
        {"a": value}
        for value in (1, 1.0, True, "1", None, 0, False, -0.0, 2**70, 1e400, math.nan, "é", "e\u0301")
    ),
    *({"a": value} for value in ([1, 2], [2, 1], [True, 2.0], {}, [], {"b": [{"c": None}]}, [[[]]])),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"b": 2},
]


def a_call(random: Random, some: list[Any]) -> dict[str, Any]:
    args = random.choice(some)
    return {"name": random.choice(["f", "f", "g", "F"]), **({} if args is None else {"args": args})}


def done(calls: list[dict[str, Any]], random: Random) -> dict[str, Any]:
    form: dict[str, Any] = {"user_content": {"parts": [{"text": "?"}]}}
    if random.random() < 0.5:
        return {**form, "intermediate_data": {"tool_uses": calls}}
    events = [
        {"author": "a", "content": {"parts": [{"function_call": call}, {"text": "…"}]}} for call in calls
    ]
    return form if not calls else {**form, "intermediateData": {"invocationEvents": events}}


def steps(random: Random) -> list[dict[str, Any]]:
    some = random.sample(ARGS, random.choice([1, 2, 4, len(ARGS)]))
    wanted = [a_call(random, some) for _ in range(random.choice([0, 1, 2, 3, 5]))]
    made = [call for call in wanted if random.random() < 0.9]
    made += [a_call(random, some) for _ in range(random.choice([0, 0, 1, 3]))]
    if random.random() < 0.5:
        random.shuffle(made)
    return [done(made, random), done(wanted, random)]


MATCH_TYPES = ["EXACT", "IN_ORDER", "ANY_ORDER", "exact", "in-order", "Any Order", 0, 1, 2]


def trajectory_case(random: Random) -> dict[str, Any]:
    return {
        "metric": "tool_trajectory_avg_score",
        "criterion": {
            "threshold": random.choice([0.0, 0.5, 1 / 3, 2 / 3, 1.0]),
            random.choice(["match_type", "matchType"]): random.choice(MATCH_TYPES),
            random.choice(["ignore_args", "ignoreArgs"]): random.random() < 0.4,
        },
        "pairs": [steps(random) for _ in range(random.randint(1, 3))],
    }


def ask_adk(question: dict[str, Any]) -> list[Any]:
    command = [PYTHON, str(PROBE)]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads(done.stdout)
    return found


async def our_scores(case: dict[str, Any]) -> tuple[list[float], float]:
    """The scores of our grader, and the threshold as we read it."""
    criterion = parse_criteria({"criteria": {case["metric"]: case["criterion"]}}, "generated").criteria[0]
    pairs = json.loads(json.dumps(case["pairs"]))  # so that no NaN is the very same object on both sides
    actual, expected = zip(
        *([INVOCATION.validate_python(one) for one in pair] for pair in pairs), strict=True
    )
    turns = tuple(as_turn(one, n) for n, one in enumerate(actual))
    conversation = Conversation("c", turns, Ending.SCRIPT)
    graded = await make_grader(EvalCase("e", expected), criterion, {}).grade(conversation, None, KEY)
    results = [graded.turns[n] for n in range(len(turns))]
    assert all(isinstance(result, Score) for result in results)
    return [result.value for result in results], criterion.threshold


def as_turn(made: Invocation, index: int) -> Turn:
    calls = tuple(
        ToolCall(call.name or "", call.args, None, mocked=False, turn_index=index)
        for call in tool_calls(made.intermediate_data)
    )
    return Turn(index, "?", text_of(made.final_response), calls)


async def differences(cases: list[dict[str, Any]]) -> list[Any]:
    found = []
    for case, theirs in zip(cases, ask_adk({"cases": cases}), strict=True):
        scores, threshold = await our_scores(case)
        total = 0.0
        for score in scores:  # one by one, as google-adk adds; sum() rounds otherwise since Python 3.12
            total += score
        ours = {
            "scores": scores,
            "passed": [score >= threshold for score in scores],
            "overall": total / len(scores),
            "overall_passed": total / len(scores) >= threshold,
        }
        if any(ours[key] != theirs[key] for key in ours):
            found.append((case, ours, theirs))
    return found


def test_words_score_as_in_google_adk() -> None:
    """ROUGE-1 of texts in many scripts, their averages and verdicts are google-adk's to the last digit."""
    random = Random(4)
    cases = [rouge_case(random) for _ in range(ROUGE_CASES)]
    print(f"{sum(len(case['pairs']) for case in cases)} pairs of texts in {len(cases)} cases")
    assert anyio.run(differences, cases) == []


def test_trajectories_match_as_in_google_adk() -> None:
    """Generated tool calls match under every match type exactly as in google-adk's evaluator."""
    random = Random(4)
    cases = [trajectory_case(random) for _ in range(TRAJECTORY_CASES)]
    print(f"{sum(len(case['pairs']) for case in cases)} trajectories in {len(cases)} cases")
    assert anyio.run(differences, cases) == []


def test_words_are_stemmed_as_in_nltk() -> None:
    """Every generated word has the stem that the stemmer of google-adk's scorer gives it."""
    random = Random(4)
    words = {a + b + c for a in STEMS for b in SUFFIXES for c in SUFFIXES}
    letters = "aaeeiioouuyyylsztdngcrvbmf2"
    words |= {"".join(random.choices(letters, k=random.randint(1, 12))) for _ in range(50_000)}
    print(f"{len(words)} words")
    asked = sorted(words)
    theirs = ask_adk({"words": asked})
    assert [(w, stem(w), t) for w, t in zip(asked, theirs, strict=True) if stem(w) != t] == []

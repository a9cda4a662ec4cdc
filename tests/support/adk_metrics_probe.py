"""Scores evaluation cases with google-adk's own evaluators, in its own environment; JSON in, JSON out.

In: `{cases: [{metric, criterion, pairs: [[actual invocation, expected invocation]]}]}`, out: for each the
scores, their average and what reached the threshold. In: `{words: […]}`, out: their stems.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from google.adk.evaluation.eval_case import Invocation
from google.adk.evaluation.eval_metrics import BaseCriterion, EvalMetric
from google.adk.evaluation.evaluator import EvalStatus
from google.adk.evaluation.final_response_match_v1 import RougeEvaluator
from google.adk.evaluation.trajectory_evaluator import TrajectoryEvaluator
from nltk.stem.porter import PorterStemmer


def evaluator(case: dict[str, Any]) -> Any:
    criterion = BaseCriterion.model_validate(case["criterion"])
    metric = EvalMetric(metric_name=case["metric"], threshold=criterion.threshold, criterion=criterion)
    if case["metric"] == "response_match_score":
        return RougeEvaluator(metric)
    return TrajectoryEvaluator(eval_metric=metric)


def scored(case: dict[str, Any]) -> dict[str, Any]:
    actual, expected = zip(*case["pairs"], strict=True)
    result = evaluator(case).evaluate_invocations(
        [Invocation.model_validate(one) for one in actual],
        [Invocation.model_validate(one) for one in expected],
    )
    scores = [one.score for one in result.per_invocation_results]
    return {
        "scores": scores,
        "passed": [one.eval_status is EvalStatus.PASSED for one in result.per_invocation_results],
        "overall": result.overall_score,
        "overall_passed": result.overall_eval_status is EvalStatus.PASSED,
    }


if __name__ == "__main__":
    question = json.load(sys.stdin)
    if "words" in question:
        answer = list(map(PorterStemmer().stem, question["words"]))
    else:
        answer = [scored(case) for case in question["cases"]]
    json.dump(answer, sys.stdout)

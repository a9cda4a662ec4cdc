"""The deciding parts of the benchmarks: which answers are faulty, and whether a target is met."""

import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

# They are not a part of the package. Last on the path: tests are of the package that is installed.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks.fault_plan import ROW, parsed, slots, written
from benchmarks.gate import Figure
from benchmarks.process import Sample, environment
from benchmarks.results import Found, Target, read_measured, summary, write_measured
from benchmarks.workload import Workload


@pytest.mark.slow
def test_programs_find_compiled_modules() -> None:
    """Measured programs start as an installed package does, with every module compiled before."""
    compiled = Path(environment()["PYTHONPYCACHEPREFIX"])
    assert any(compiled.rglob("runner.*.pyc"))
    assert any(compiled.rglob("worker.*.pyc"))


def test_each_fault_meets_as_many_requests_of_a_row_as_it_was_given() -> None:
    """Faults for the same request do not displace each other."""
    faults = {"429": 10, "500": 10, "cut": 5, "hang": 2}
    found = Counter(slots(faults))
    assert found.pop(None) == ROW - 27
    assert found == faults


def test_a_fault_is_spread_evenly() -> None:
    """A single fault hits requests at equal distances."""
    at = [place for place, fault in enumerate(slots({"500": 10})) if fault]
    assert {later - earlier for earlier, later in pairwise(at)} == {ROW // 10}


def test_more_faults_than_requests_are_refused() -> None:
    """Faults that do not fit are an error, not left out."""
    with pytest.raises(ValueError, match="more faults than requests"):
        slots({"429": ROW, "500": 1})


def test_faults_survive_the_command_line() -> None:
    """Faults written as an argument are read back unchanged; an empty argument has none."""
    assert parsed(written({"429": 10, "cut": 5})) == {"429": 10, "cut": 5}
    assert parsed("") == {}


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [(1.7, True, True), (1.69, True, False), (1.7, False, True), (1.71, False, False)],
)
def test_a_target_is_met_at_its_limit_and_missed_beyond(value: float, at_least: bool, met: bool) -> None:
    """`at_least` reverses the comparison, and the row shows which one applies."""
    row = Target("throughput", value, 1.7, "×", at_least=at_least).row()
    assert row == [
        "throughput",
        f"{value:.2f} ×",
        f"{'≥' if at_least else '≤'} 1.7 ×",
        "met" if met else "**missed**",
    ]


def test_targets_of_another_day_stay_in_the_table(tmp_path: Path) -> None:
    """Earlier measurements are read back unchanged, with day and machine."""
    file = tmp_path / "targets.json"
    assert read_measured(file) == {}
    write_measured({"run": ("Measured on Monday.", [Target("wall", 1.1, 1.2, "×")])}, file)
    text = summary({**read_measured(file), "cpu": ("Measured on Tuesday.", [Target("CPU", 2, 1.2, "ms")])})
    assert text.startswith("1 of 2 targets met.")
    assert "| `run` | wall | 1.10 × | ≤ 1.2 × | met |" in text
    assert text.endswith("Measured on Monday.\nMeasured on Tuesday.")


def test_a_section_without_targets_has_no_table_of_them() -> None:
    """It has only its text."""
    assert Found("text").page() == "text"


def test_the_gate_leaves_out_the_cost_of_both_sizes() -> None:
    """A figure is the CPU time of the large workload's extra units, without start-up."""
    small, large = Workload(scenarios=1), Workload(scenarios=3)
    figure = Figure("a call", 9.0, large, small, units=4)
    samples = {
        ("a call", "agentest", small): Sample(wall_s=9.0, cpu_s=0.5, peak_mb=1.0),
        ("a call", "agentest", large): Sample(wall_s=9.0, cpu_s=0.9, peak_mb=1.0),
    }
    assert figure.cpu_ms("agentest", samples) == pytest.approx(100.0)
    assert replace(figure, small=None, units=1).cpu_ms("agentest", samples) == pytest.approx(900.0)

"""The project in examples/ray runs unchanged, and its files for clusters agree with each other."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml
from project import Project

from agentest.cli.main import cli

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray"


def document(name: str) -> Any:
    return yaml.safe_load((EXAMPLE / name).read_text(encoding="utf-8"))


def pods() -> list[Any]:
    """The one container of each kind of pod, the head's first."""
    cluster = document("rayjob.yaml")["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [container for each in groups for container in each["template"]["spec"]["containers"]]


def test_it_runs_in_one_process_and_in_workers(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "night", ignore=shutil.ignore_patterns(".agentest"))
    project = Project(tmp_path / "night")
    for arguments in ([], ["--workers", "2"]):
        done = project.run("--conversations", "4", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(project.results["scenarios"][0]["conversations"]) == 4


def test_the_job_of_kuberay_is_one() -> None:
    job = document("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, command, *words = shlex.split(job["spec"]["entrypoint"])
    assert (program, command) == ("agentest", "run")
    context = cli.commands["run"].make_context("run", words)
    assert context.params["engine"] == "ray"
    assert job["spec"]["backoffLimit"] == 0


def test_all_pods_have_the_image_that_the_dockerfile_makes() -> None:
    """And the Ray that KubeRay is reported is the one in it."""
    assert len({container["image"] for container in pods()}) == 1
    version = document("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"]
    lines = (EXAMPLE / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"FROM rayproject/ray:{version}-py") for line in lines)
    folder = next(line.split()[1] for line in lines if line.startswith("WORKDIR "))
    assert f"--cwd {folder} " in document("rayjob.yaml")["spec"]["entrypoint"]


def test_results_are_in_a_volume_that_outlives_the_cluster() -> None:
    head = document("rayjob.yaml")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    container = head["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    (mount,) = container["volumeMounts"]
    assert variables["RESULTS"] == mount["mountPath"]
    (volume,) = head["volumes"]
    assert volume["name"] == mount["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == document("results.yaml")["metadata"]["name"]
    assert "${RESULTS:-" in document("agentest.config.yaml")["output_dir"]


def test_no_file_has_a_key() -> None:
    """Keys come from a Secret, only for the head; Ray and docker are told to exclude local ones."""
    head, *others = pods()
    keys = [each for each in head["env"] if each["name"].endswith("_KEY")]
    assert [set(each) for each in keys] == [{"name", "valueFrom"}]
    assert not any(other.get("env") for other in others)
    assert document("job.yaml")["env_vars"].keys() == {"RESULTS"}
    for name in (".rayignore", ".dockerignore"):
        assert (EXAMPLE / name).read_text(encoding="utf-8").splitlines() == [".agentest", ".env*"]

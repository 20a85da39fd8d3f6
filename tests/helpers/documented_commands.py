"""A directory with the files that the pages speak of, and the commands on those pages run in it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click
from click.testing import CliRunner, Result
from PIL import Image

import ebcli.cli.benchmark
import ebcli.cli.saliency

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, click.Command] = {"eb-saliency": ebcli.cli.saliency.main, "eb-benchmark": ebcli.cli.benchmark.main}
LABELS = {"chelsea": 282, "coffee": 967, "mosaic": 967, "rocket": 657, "gradient": 0}

# Commands of ours that no test can run, by how a word in them begins, and why. Their options are checked.
NOT_RUN = {
    "ray": "needs a Ray cluster; tests/run/test_ray.py runs them on clusters",
    "pointing": "needs VOC, COCO and networks with their classes; tests/evaluate runs it on data sets of that form",
    **dict.fromkeys(
        ("timm/", "hf/", "nets.py:", "finetuned"),
        "needs networks and checkpoints; tests/models/test_own_models.py makes them",
    ),
    "s3://": "needs a bucket with photos; tests/files/test_storage.py has one",
}
# Commands of others, by how they begin, and why they are not run. That they parse is checked.
OTHERS = {
    "python3 -m venv": "installs; .ci/run does it",
    "pip install": "installs; .ci/run does it",
    ".ci/check": "runs all tests, these among them",
    "eval": "tests/cli/test_completion.py tries it in each shell",
    "_EB_SALIENCY_COMPLETE": "tests/cli/test_completion.py tries it in each shell",
    "docker": "needs Docker; tests/test_release.py looks at the Dockerfile",
    "mkdocs": "tests/test_site.py builds the site",
    "python benchmarks/": "measures for minutes",
    "python docs/make_pictures.py": "draws the pictures that are there",
}
# What is added to a command, lest it take minutes: it measures the same on less
LESS = {
    "grid": "--mosaics 1 --confidence 0",
    "deletion": "--limit 1 --steps 2",
    "insertion": "--limit 1 --steps 2",
    "sanity": "--limit 1 --steps 2",
    "localize": "--limit 1",
}
# Weights that would have to be downloaded: these networks are untrained here
UNTRAINED = ["--weights", "none"]

_OBJECT = """<annotation><size><width>451</width><height>300</height></size><object><name>{name}</name>
<bndbox><xmin>100</xmin><ymin>20</ymin><xmax>350</xmax><ymax>280</ymax></bndbox></object></annotation>
"""
_MENTIONED = re.compile(rf"\b(?:{'|'.join(COMMANDS)}) [^\"'\n&|;]+")


def lay(desk: Path) -> None:
    """Put the files there."""
    shutil.copytree(ROOT / "sample_images", desk / "sample_images")
    shutil.copytree(ROOT / "sample_images", desk / "photos", ignore=shutil.ignore_patterns("*.md"))
    Image.linear_gradient("L").save(desk / "photos/gradient.jpg")  # a mosaic takes photos of four classes
    shutil.copy(ROOT / "sample_images/mosaic.jpg", desk / "img.jpg")
    shutil.copy(ROOT / "docs/examples/nets.py", desk)
    (desk / "labels.csv").write_text("".join(f"{name}.jpg,{index}\n" for name, index in LABELS.items()))
    (desk / "LOC_synset_mapping.txt").write_text("".join(f"n{index:08} a name\n" for index in range(1000)))
    (desk / "annotations").mkdir()
    for name, index in LABELS.items():
        (desk / f"annotations/{name}.xml").write_text(_OBJECT.format(name=f"n{index:08}"))
    (desk / "val2014").mkdir()
    (desk / "instances_val2014.json").touch()


def run_line(line: str) -> Result | None:
    """Run one line of a shell in the working directory; None if it is another program's.

    Raises:
        AssertionError: it fails, its options are wrong, or it is unknown: run it, or list it above with a reason.
    """
    line = line.removeprefix(".venv/bin/")
    subprocess.run(["bash", "-n", "-c", line], check=True)
    before, _, ours = line.rpartition(" | ")
    words = shlex.split(ours, comments=True)
    if not words:
        return None
    if words[0] not in COMMANDS:
        assert any(line.startswith(known) for known in OTHERS), f"neither run nor known: {line}"
        if words[:2] == ["docker", "run"]:  # what follows the image's name is for the command
            image = [word.partition(":")[0] for word in words].index("eb-saliency")
            check_options(["eb-saliency", *words[image + 1 :]])
        return None
    if any(word.startswith(tuple(NOT_RUN)) for word in words):
        check_options(words)
        return None
    piped = subprocess.run(["bash", "-c", before], check=True, capture_output=True).stdout if before else b""
    if "--model" in words and "--weights" not in words:
        words += UNTRAINED
    words += shlex.split(LESS.get(words[1], "") if words[0] == "eb-benchmark" else "")
    # no processes of their own, which would have to import torch
    result = CliRunner().invoke(COMMANDS[words[0]], words[1:], piped, env={"EB_SALIENCY_WORKERS": "0"})
    assert result.exit_code == 0, f"{line}\n{result.output}"
    assert result.output, line
    if words[0] == "eb-saliency" and not {"--json", "--list-models", "--list-layers", "--help", "--doctor"} & set(
        words
    ):
        assert all(Path(path).is_file() for path in result.stdout.splitlines())
    return result


def run_script(script: str) -> None:
    """See that a script of a shell parses, and that our commands in it have valid options."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at in [at for at, word in enumerate(words) if word in COMMANDS]:
            check_options(words[at:])


def check_mentioned(text: str) -> None:
    """Check the options of each of our commands in a text."""
    for command in _MENTIONED.findall(text):
        check_options(shlex.split(command, comments=True))


def check_options(words: Sequence[str]) -> None:
    """Parse a command line, and run nothing."""
    command, arguments = COMMANDS[words[0]], list(words[1:])
    if isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    try:
        command.make_context(words[0], arguments).close()
    except click.ClickException as error:
        raise AssertionError(f"{shlex.join(words)}: {error.format_message()}") from error

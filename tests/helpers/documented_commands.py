"""The files that the documentation mentions, and its commands, run among them."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from click.testing import CliRunner, Result
from PIL import Image
from videos import moving_square, write_video

from benchmarks.trained import sentences
from benchmarks.trained.rounded import restored
from ebcli.cli.saliency import main

ROOT = Path(__file__).parents[2]
LABELS = {"chelsea": 282, "coffee": 967, "mosaic": 967, "rocket": 657, "gradient": 0}

# Commands not run, by the start of one of their words, and the reason. Their options are checked.
NOT_RUN = {
    "ray": "needs a Ray cluster; tests/run/test_ray.py runs them on clusters",
    "pointing": "needs VOC, COCO and networks with their classes; tests/evaluate uses small data sets in these formats",
    **dict.fromkeys(
        ("timm/", "hf/", "clip/", "open_clip/", "net.onnx", "net.pt2", "nets.py:", "finetuned"),
        "needs networks and checkpoints; tests/models/test_own_models.py makes them",
    ),
    "ultralytics/": "needs a published file; tests/models/test_ultralytics.py makes some",
    "serve": "answers until Ctrl-C; tests/serve starts it",
    "s3://": "needs a bucket with photos; tests/files/test_storage.py has one",
}
# Other programs, by the start of the command, and why they are not run. Their shell syntax is checked.
OTHERS = {
    "python3 -m venv": "installs; .ci/run does it",
    "pip install": "installs; .ci/run installs a checkout",
    ".ci/check": "runs all tests, including these",
    ".ci/versions": "installs other versions of everything",
    "docker": "needs Docker; tests/test_release.py checks the Dockerfile",
    "python -m benchmarks.": "measures for minutes",
}
# Options added to commands that have one of these words, and would take long
LESS = {
    "--sufficiency": "--include c*",
    "vgg16": "--resize 64 --crop 64",
    "r3d_18": "--resize 48 --crop 48",
    "lraspp_mobilenet_v3_large": "--resize 64",
    "grid": "--mosaics 1 --confidence 0 --cell 64",
    "naming": "--mosaics 1 --confidence 0 --cell 64",
    "deletion": "--limit 1 --steps 2",
    "insertion": "--limit 1 --steps 2",
    "sanity": "--limit 1 --steps 2",
    "localize": "--limit 2",
}
# Another network of the same family, in place of one that takes long
SMALLER = {"fasterrcnn_resnet50_fpn": "fasterrcnn_mobilenet_v3_large_320_fpn"}
SMALL_LLAVA = "small_llava"  # written when a command names it
# Added where weights would be downloaded
UNTRAINED = ["--weights", "none"]

_OBJECT = """<annotation><size><width>451</width><height>300</height></size><object><name>{name}</name>
<bndbox><xmin>100</xmin><ymin>20</ymin><xmax>350</xmax><ymax>280</ymax></bndbox></object></annotation>
"""
_MENTIONED = re.compile(r"\beb-saliency [^\"'\n&|;]+")


def write_files(folder: Path) -> None:
    """Write the files that the documentation mentions."""
    shutil.copytree(ROOT / "sample_images", folder / "sample_images")
    shutil.copytree(ROOT / "sample_images", folder / "photos", ignore=shutil.ignore_patterns("*.md"))
    Image.linear_gradient("L").save(folder / "photos/gradient.jpg")  # mosaics need four classes
    shutil.copy(ROOT / "sample_images/mosaic.jpg", folder / "img.jpg")
    for name in ("nets.py", "heads.py", "arrays.py", "digits.py", "diagnosis.py", "strong.py"):
        shutil.copy(ROOT / "docs/examples" / name, folder)
    (folder / "labels.csv").write_text("".join(f"{name}.jpg,{index}\n" for name, index in LABELS.items()))
    (folder / "LOC_synset_mapping.txt").write_text("".join(f"n{index:08} a name\n" for index in range(1000)))
    (folder / "boxes.csv").write_text(
        "".join(f"{name}.jpg,{index},100,20,350,280\n" for name, index in LABELS.items())
    )
    (folder / "annotations").mkdir()
    for name, index in LABELS.items():
        (folder / f"annotations/{name}.xml").write_text(_OBJECT.format(name=f"n{index:08}"))
    write_video(folder / "video.mp4", moving_square(24, (64, 48)), rate=12)
    (folder / "val2014").mkdir()
    (folder / "instances_val2014.json").touch()


def write_small_llava(folder: Path) -> None:
    """Write a trained network that describes two letters, and a picture of letters."""
    net = sentences.build()
    net.load_state_dict(restored(torch.load(ROOT / "tests/evaluate/weights/LLaVA.pt", weights_only=True)))
    sentences.save(net, folder / SMALL_LLAVA)
    image = sentences.described(1, torch.Generator().manual_seed(2)).images[0]
    pixels = ((image * sentences.STD + sentences.MEAN).clamp(0, 1) * 255).byte()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / "letters.png")


def run_line(line: str) -> Result | None:
    """Run a shell line in the working directory; None if it is not run.

    Raises:
        AssertionError: it fails, its options are wrong, or it is unknown.
    """
    line = line.removeprefix(".venv/bin/")
    subprocess.run(["bash", "-n", "-c", line], check=True)
    before, _, ours = line.rpartition(" | ")
    words = shlex.split(ours, comments=True)
    if not words:
        return None
    environment = {"EB_SALIENCY_WORKERS": "0"}  # no worker processes, which would have to import torch
    while words[0].startswith("EB_SALIENCY_"):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words[0] != "eb-saliency":
        assert any(line.startswith(known) for known in OTHERS), f"unknown command: {line}"
        if words[:2] == ["docker", "run"]:
            name = [word.partition(":")[0] for word in words].index("eb-saliency")
            check_options(["eb-saliency", *words[name + 1 :]])
        return None
    if any(word.startswith(tuple(NOT_RUN)) for word in words):
        check_options(words)
        return None
    piped = subprocess.run(["bash", "-c", before], check=True, capture_output=True).stdout if before else b""
    if SMALL_LLAVA in words:
        write_small_llava(Path())
    elif "--model" in words and "--weights" not in words:
        words += UNTRAINED
    words = [SMALLER.get(word, word) for word in words]
    words += [option for word in words for option in shlex.split(LESS.get(word, ""))]
    if "<" in words:
        piped = Path(_taken(words, "<")).read_bytes()
    target = _taken(words, ">") if ">" in words else None
    result = CliRunner().invoke(main, words[1:], piped, env=environment)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    assert result.output or "--shard" in line, line  # a shard of few photos can be empty
    if target is not None:
        Path(target).write_bytes(result.stdout_bytes)
        return result
    if words[1] not in main.commands and not {"--json", "--help", "-h"} & set(words):
        # with --at, a ranking follows
        assert all(
            Path(line.partition("  ")[0]).is_file() for line in result.stdout.replace("\0", "\n").splitlines()
        )
    return result


def _taken(words: list[str], sign: str) -> str:
    """Remove a redirection from a command, and return its file."""
    at = words.index(sign)
    file = words[at + 1]
    del words[at : at + 2]
    return file


def run_script(script: str) -> None:
    """Check the syntax of a shell script and the options of the commands in it."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at in [at for at, word in enumerate(words) if word == "eb-saliency"]:
            check_options(words[at:])


def check_mentioned(text: str) -> None:
    """Check the options of the commands in a text."""
    for command in _MENTIONED.findall(text):
        check_options(shlex.split(command, comments=True))


def check_options(words: Sequence[str]) -> None:
    """Parse a command line without running it."""
    command: click.Command = main
    arguments = list(words[1:])
    while isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        command = command.commands[arguments.pop(0)]
    try:
        command.make_context(words[0], arguments).close()
    except click.ClickException as error:
        raise AssertionError(f"{shlex.join(words)}: {error.format_message()}") from error

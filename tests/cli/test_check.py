"""The command ``check``: what it repeats, what it compares, and what it says where."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import two_heads
from click.testing import CliRunner, Result
from color_net import BLUE, RED, painted
from galleries import CATS, add, photo
from option_values import HOSTILE
from runs import invoke, photos, records, tiny_model, tree

from ebcli.cli.saliency import main
from ebcli.cli.settings import read_settings
from ebcli.datatypes.explanation import Box, Map, Subject
from ebcli.gallery.comparison import Limits, MapPair, comparison_of, read_pairs
from ebcli.models import load_model
from ebcli.run.explainer import Explainer

pytestmark = pytest.mark.usefixtures("working_directory")


@pytest.fixture
def baseline() -> Path:
    photos(Path("photos"), 4)
    large = ("--format", "jpg", "--raw", "--report", "--skip-existing")
    assert invoke("photos", *large, "--target", "3", "-o", "base").exit_code == 0
    return Path("base")


def failures(path: str) -> dict[tuple[str, str], str]:
    """The failures of a report, by file and class."""
    suites = ElementTree.parse(path).getroot()
    cases = suites.findall("./testsuite/testcase")
    found = {(one.attrib["classname"], one.attrib["name"]): one.findall("failure") for one in cases}
    assert suites.attrib == {
        "name": "eb-saliency check",
        "tests": str(len(cases)),
        "failures": str(sum(map(len, found.values()))),
    }
    return {key: one[0].attrib["message"] for key, one in found.items() if one}


def changed(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """From now on, networks have other weights, or their classes in reverse."""

    def load(*arguments: object, **options: object) -> Any:
        model = tiny_model(*arguments, **options)
        with torch.no_grad():
            last = model.net[3][3]
            if change == "reversed":
                last.weight.copy_(last.weight.flip(0))
                last.bias.copy_(last.bias.flip(0))
            else:
                torch.manual_seed(1)
                for parameter in model.net.parameters():
                    parameter.normal_()
        return model

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)


def test_a_run_repeated_is_exactly_equal_and_stays_as_it_is(baseline: Path) -> None:
    before = tree(Path())
    result = invoke("check", "base", "--junit", "report.xml")
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert "4 of 4 agree, 4 of them exactly" in result.stderr
    assert failures("report.xml") == {}
    Path("report.xml").rename(baseline.with_name("other.xml"))
    after = tree(Path())
    assert after.pop("other.xml")
    assert after == before


def test_the_environment_changes_nothing(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in HOSTILE.items():
        monkeypatch.setenv(name, text)
    result = invoke("check", "base")
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert "4 of 4 agree, 4 of them exactly" in result.stderr


def test_only_what_maps_depend_on_is_repeated() -> None:
    photos(Path("photos"), 2)
    more = (
        "--sufficiency",
        "--annotations",
        "boxes",
        "--records",
        "table.csv",
        "--panel",
        "--dpi",
        "50",
        "--compare-with",
        "gradient",
    )
    assert invoke("photos", "--raw", "--report", "--marginal", "-o", "base", *more).exit_code == 0
    before = tree(Path())
    result = invoke("check", "base", "-o", "new")
    assert "2 of 2 agree, 2 of them exactly" in result.stderr
    assert {path: found for path, found in tree(Path()).items() if not path.startswith("new")} == before
    settings = read_settings(Path("new/settings.toml"))
    assert (settings["method"], settings["sufficiency"], settings["panel"]) == (["marginal"], False, False)


def test_another_network_is_found_worst_first(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("check", "base", "-o", "new").exit_code == 0
    changed(monkeypatch, "weights")  # although the baseline skips existing results
    result = invoke("check", "base", "-o", "new", "--junit", "report.xml")
    assert result.exit_code == 1
    *sentences, page = result.stdout.splitlines()
    rows = {row["input"]: row for row in json.loads(Path("new/comparison/comparison.json").read_text())}
    assert page == "new/comparison/index.html"
    assert all(row["photo"] for row in rows.values())
    assert sorted(failures("report.xml").values()) == sorted(sentences)
    correlations = []
    for sentence in sentences:
        name, _, problems = sentence.removeprefix("photos/").partition(", class d: ")
        with np.load(f"base/{name}.npz") as a, np.load(f"new/{name}.npz") as b:
            exact = np.corrcoef(a["maps"].ravel(), b["maps"].ravel())[0, 1]
        said = float(problems.removeprefix("correlation ").partition(" ")[0])
        assert said == pytest.approx(exact, abs=0.1)  # upsampled
        correlations.append(said)
    assert len(correlations) == 4 and correlations == sorted(correlations)
    lenient = ("--min-correlation", "-1", "--min-overlap", "0", "--max-shift", "1")
    assert invoke("check", "base", *lenient).exit_code == 0


def test_changed_classes_and_missing_images_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 4)
    invoke("photos", "--raw", "-o", "base")
    changed(monkeypatch, "reversed")
    result = invoke("check", "base", "--junit", "report.xml")
    assert result.exit_code == 1
    before = []
    for record in records(Path("base")):
        first = record["classes"][0]
        before.append(f"{record['input']}: {first['name']} ({first['score']:.3f}) before, class ")
    lines = sorted(result.stdout.splitlines())
    assert [line.startswith(words) for line, words in zip(lines, sorted(before), strict=True)] == [True] * 4
    assert {name for _, name in failures("report.xml")} == {"first class"}
    assert invoke("check", "base", "--max-changed", "1").exit_code == 0
    Path("photos/0/0003.jpg").unlink()
    result = invoke("check", "base", "--max-changed", "1", "-o", "new")
    assert (result.exit_code, result.stdout) == (1, "photos/0/0003.jpg: not explained any more\n")
    assert "No page: no image has maps of one class in both runs" in result.stderr


def test_a_baseline_whose_raw_maps_are_not_all_there_agrees_with_nothing(baseline: Path) -> None:
    first, second, *_ = sorted(baseline.rglob("*.npz"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:100])
    result = invoke("check", "base")
    problem = "its raw maps in the baseline are missing or damaged"
    assert result.stdout.splitlines() == [
        f"photos/{name}: {problem}" for name in ("0/0000.jpg", "0/0003.jpg")
    ]
    assert result.exit_code == 1


def pair(*values: np.ndarray) -> MapPair:
    place = Box(0, 0, 256, 128)
    one, other = (
        Map(
            subject=Subject(1, None, 0.5),
            layer="2",
            values=each.astype(np.float32),
            mass=1.0,
            placement=place,
        )
        for each in values
    )
    return MapPair("a.png", (256, 128), (one, other), ("A", "B"))


def test_maps_are_compared_by_correlation_top_fifth_and_peak() -> None:
    """Two maps of 4 x 8 square cells, of one column each, three columns apart."""
    values = np.zeros((2, 4, 8))
    values[0, :, 1], values[1, :, 4] = 1, 1
    values[:, 2] *= 2  # the peaks
    found = comparison_of(pair(*values), Limits())
    assert found.subject == "class 1" and not found.equal
    assert found.correlation == pytest.approx(np.corrcoef(values.reshape(2, -1))[0, 1], abs=0.05)
    shift = 3 * 32 / np.hypot(256, 128)
    assert f"peak moved by {shift:.3f} of the diagonal (at most 0.1)" in found.problems[-1]
    assert len(found.problems) == 3
    assert comparison_of(pair(*values), Limits(-1, 0, 0.4)).problems == ()
    flat = comparison_of(pair(values[0], np.ones((4, 8))), Limits())
    assert flat.correlation == 0
    same = comparison_of(pair(np.zeros((4, 8)), np.zeros((4, 8))), Limits())
    assert (same.correlation, same.problems, same.equal) == (1, (), True)


def test_detections_of_one_class_are_compared_with_their_own() -> None:
    source, cats = photo(Path("a.png")), (CATS[0], replace(CATS[0], name="tiger cat again"), CATS[1])
    for directory in ("a", "b"):
        add(Path(directory), source, cats, keep=("raw",))
    assert [one.maps[0].subject.index for one in read_pairs(Path("a"), Path("b"))] == [282, 282, 285]


@pytest.mark.parametrize(
    ("given", "loaded"),
    [
        ((), ("tiny", "new.pth")),
        (("--model", "new.pth"), ("tiny", "new.pth")),
        (("--model", "resnet18"), ("resnet18", "DEFAULT")),
        (("--model", "resnet18", "--weights", "none"), ("resnet18", "none")),
    ],
)
def test_what_is_given_takes_the_place_of_what_the_run_had(
    given: tuple[str, ...], loaded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint belongs to a network, so another one has its own weights."""
    photos(Path("photos"), 1)
    Path("new.pth").touch()
    asked: list[tuple[object, object]] = []

    def load(name: str, weights: str, **_: object) -> Any:
        asked.append((name, weights))
        return tiny_model()

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)
    invoke("photos", "--raw", "--weights", "new.pth", "-o", "base")
    assert invoke("check", "base", *given).exit_code == 0
    assert asked[1:] == [loaded]


def test_what_cannot_be_checked_says_so(baseline: Path) -> None:
    Path("precious.xml").write_text("<mine/>")
    invoke("photos", "-o", "plain")

    def error(*arguments: str) -> str:
        result: Result = invoke("check", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        return result.stderr

    assert "'plain' has no raw maps: repeat that run with --raw" in error("plain")
    assert "cannot read 'none/settings.toml'" in error("none")
    assert "'base' would be compared with itself" in error("base", "-o", "./base")
    assert "'precious.xml' would be replaced" in error("base", "--junit", "precious.xml")
    assert Path("precious.xml").read_text() == "<mine/>"
    assert "--max-shift is 2, but it must be from 0 to 1" in error("base", "--max-shift", "2")
    assert "has no layer 'nonesuch'" in error("base", "--layer", "nonesuch")


def test_a_repetition_that_does_not_come_to_its_end_agrees_with_nothing(
    baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is that of the command, even if what it made until then agrees."""
    real = Explainer.explain

    def explain(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(Explainer, "explain", explain)
    result = invoke("check", "base")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "agree" not in result.stderr


def test_maps_of_another_image_of_that_name_are_not_compared() -> None:
    for directory, size in (("a", (96, 64)), ("b", (64, 96))):
        add(Path(directory), photo(Path("a.png"), size), CATS, keep=("raw",))
    assert list(read_pairs(Path("a"), Path("b"))) == []


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("several_inputs:Patient", ("--layer", "act", "--target", "0")),
        ("value_nets:Heights", ("--layer", "cells", "--scores", "raw", "--where", "48,16")),
        ("two_heads:two", ("--layer", "pixels", "--head", "color", "--target", "1")),
        ("value_nets:Bright", ("--layer", "cells", "--target", "background")),
    ],
)
def test_networks_of_every_kind_are_repeated_exactly(
    monkeypatch: pytest.MonkeyPatch, factory: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    painted((64, 64), (RED, (40, 8, 56, 24)), (BLUE, (8, 32, 24, 56))).save("a.png")
    Path("a.json").write_text("[0.1, 0.02, 0.01]")
    module, _, name = factory.partition(":")
    model = f"{Path(two_heads.__file__).with_name(module)}.py:{name}"
    run = ["a.png", "--model", model, "--workers", "0", "--raw", "-o", "base", *options]
    result = CliRunner().invoke(main, run)
    assert result.exit_code == 0, result.stderr
    result = invoke("check", "base")
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert "1 of 1 agree, 1 of them exactly" in result.stderr

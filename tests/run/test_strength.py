"""How much a map rests on: measured, told in records and on stderr, and seen in the picture."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Box, Map, Subject

ALL_NOISE = ("test_what_two_cats_differ_by_is_weak_evidence",)

SAMPLES = Path(__file__).parents[2] / "sample_images"
MOSAIC = str(SAMPLES / "mosaic.jpg")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ("--workers", "0", "--json", *arguments))
    assert result.exit_code == 0, result.stderr
    return result


def first_map(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout.splitlines()[0])["classes"][0]
    return found


def colorfulness(picture: Path) -> float:
    """The greatest distance of a pixel from gray."""
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    return float((pixels.max(2) - pixels.min(2)).max())


def test_a_map_of_nothing_is_faint_and_said_to_be() -> None:
    """White paper and noise show nothing; a daisy is not in a cup of coffee; an espresso is."""
    Image.new("RGB", (240, 240), "white").save("white.png")
    noise = np.random.default_rng(1).integers(0, 256, (240, 240, 3), dtype=np.uint8)
    Image.fromarray(noise).save("noise.png")
    coffee = str(SAMPLES / "coffee.jpg")
    heatmap = "--style", "heatmap", "--format", "png"
    espresso = run(coffee, "--target", "espresso", *heatmap, "-o", "espresso.png")
    assert first_map(espresso)["evidence"] == "clear"
    assert "faint" not in espresso.stderr
    bright = colorfulness(Path("espresso.png"))
    for name, arguments in {
        "daisy": [coffee, "--target", "daisy"],
        "white": ["white.png"],
        "noise": ["noise.png"],
    }.items():
        result = run(*arguments, *heatmap, "-o", f"map of {name}.png")
        assert first_map(result)["evidence"] == "hardly any"
        assert result.stderr.count("drawn faint") == 1
        assert colorfulness(Path(f"map of {name}.png")) < bright * 0.75


@pytest.mark.parametrize(("noise", "evidence"), [(0.19, "clear"), (0.21, None)])
def test_nothing_is_said_of_the_evidence_if_noise_is_strong(noise: float, evidence: str | None) -> None:
    values = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)  # the largest strength that a map can have
    strongest = Map(
        subject=Subject(0, "cup", 0.9),
        layer="5",
        values=values,
        mass=1.0,
        placement=Box(0, 0, 8, 8),
        noise=noise,
    )
    assert strongest.evidence == evidence
    words = [f"strength {1 / noise:.1f}× noise", f"{evidence} evidence"]
    assert strongest.evidence_words == (words if evidence else [])
    assert strongest.times_noise == 1 / noise
    assert strongest.brightness(signed=False) == 1.0


@pytest.mark.parametrize(("share", "evidence"), [(0.05, "hardly any"), (0.2, "weak"), (0.5, "clear")])
def test_a_word_rests_on_what_the_picture_shows_of_it_however_strong_its_map_is(
    share: float, evidence: str
) -> None:
    values = np.array([[0.5, 0.0], [0.0, -0.5]], np.float32)
    place = Box(0, 0, 8, 8)
    word = Map(
        subject=Subject(0, "cup", 0.9), layer="5", values=values, mass=1.0, placement=place, share=share
    )
    for noise in (None, 0.01, 0.5):
        assert replace(word, noise=noise).evidence == evidence
    assert word.is_noise == (evidence == "hardly any")
    assert word.brightness(signed=False) == (
        1.0 if evidence == "clear" else pytest.approx(max(0.2, share / 0.35))
    )


def test_a_run_says_how_many() -> None:
    for name in "ab":
        Image.new("RGB", (240, 240), "white").save(f"{name}.png")
    result = run("a.png", "b.png", str(SAMPLES / "rocket.jpg"))
    assert result.stderr.count("They are drawn faint") == 1
    assert "2 of 3 maps have hardly any evidence: they are about as strong as maps of noise." in result.stderr


def test_the_strength_is_the_sum_of_the_positive_cells() -> None:
    (record,) = map(json.loads, run(str(SAMPLES / "coffee.jpg"), "--raw", "-o", "out").stdout.splitlines())
    (arrays,) = Path("out").rglob("*.npz")
    values = np.load(arrays)["maps"][0]
    assert record["classes"][0]["strength"] == pytest.approx(values[values > 0].sum(), rel=1e-6)
    (picture,) = Path("out").rglob("*.jpg")
    told = json.loads(CliRunner().invoke(main, ["info", "--json", str(picture)]).stdout)
    times = record["classes"][0]["times_noise"]
    assert times > 10
    assert told["strength"] == f"{times:.0f}× noise, clear evidence"


@pytest.mark.parametrize(
    ("times", "is_unlikely", "told"),
    [
        (1.44, False, ["strength 1.4× noise", "hardly any evidence"]),
        (1.44, True, ["strength 1.4× noise", "hardly any evidence"]),
        (1.56, True, ["strength 1.6× noise", "hardly any evidence: score below chance"]),
        (1.56, False, ["strength 1.6× noise", "weak evidence"]),
        (2.94, False, ["strength 2.9× noise", "weak evidence"]),
        (3.06, False, ["strength 3.1× noise", "clear evidence"]),
        (23.4, True, ["strength 23× noise", "hardly any evidence: score below chance"]),
    ],
)
def test_what_is_told_is_comparable_and_says_what_decides(
    times: float, is_unlikely: bool, told: list[str]
) -> None:
    """Whatever the strength is in itself."""
    for noise in (0.002, 0.04):
        values = np.array([[times * noise, -times * noise]], np.float32)
        one = Map(
            subject=Subject(0, "cup", 0.9, is_unlikely=is_unlikely),
            layer="5",
            values=values,
            mass=1.0,
            placement=Box(0, 0, 8, 8),
            noise=noise,
        )
        assert one.evidence_words == told
        assert one.times_noise == pytest.approx(times, rel=1e-5)


def test_the_terminal_says_what_decides() -> None:
    coffee = str(SAMPLES / "coffee.jpg")
    Image.new("RGB", (240, 240), "white").save("white.png")
    for arguments, reasons in (
        (["white.png"], "it is about as strong as a map of noise. It"),
        ([coffee, "--target", "daisy"], "the score is below chance. It"),
        (
            ["white.png", coffee, "--target", "daisy"],
            ": 1 as strong as maps of noise, 1 with a score below chance. They",
        ),
    ):
        assert f"{reasons} " in run(*arguments, "-o", f"out{len(arguments)}").stderr


def test_marginal_maps_have_no_strength() -> None:
    found = first_map(run(str(SAMPLES / "coffee.jpg"), "--marginal"))
    assert (found["strength"], found["evidence"]) == (None, None)


def test_two_cats_differ_by_little() -> None:
    """Of the mosaic of a cat and a cup, "tiger cat" is much stronger against a cup than against another cat."""
    strengths = {
        other: first_map(run(MOSAIC, "--target", "tiger cat", "--against", other, "-o", other))["strength"]
        for other in ("tabby", "espresso")
    }
    assert strengths["tabby"] < strengths["espresso"] / 3  # type: ignore[operator]


@pytest.mark.release
def test_what_two_cats_differ_by_is_weak_evidence() -> None:
    for other, evidence in (("tabby", "weak"), ("espresso", "clear")):
        result = run(MOSAIC, "--target", "tiger cat", "--against", other, "-o", other)
        assert first_map(result)["evidence"] == evidence


@pytest.mark.release
def test_a_map_against_a_class_is_drawn_signed() -> None:
    with Image.open(SAMPLES / "mosaic.jpg") as photo:
        photo.resize((photo.width // 2, photo.height // 2)).save("mosaic.png")
    against = (
        "mosaic.png",
        "--target",
        "tiger cat",
        "--against",
        "espresso",
        "--style",
        "heatmap",
        "--format",
        "png",
    )
    pictures = {}
    for name, options in {"default": [], "signed": ["--signed"], "unsigned": ["--unsigned"]}.items():
        run(*against, *options, "-o", f"{name}.png")
        pictures[name] = Path(f"{name}.png").read_bytes()
    pixels = {name: np.asarray(Image.open(f"{name}.png")) for name in pictures}
    np.testing.assert_array_equal(pixels["default"], pixels["signed"])
    assert (pixels["default"] != pixels["unsigned"]).any()
    run(*against[:-4], "--style", "mask", "-o", "mask.png")  # which has no negative half

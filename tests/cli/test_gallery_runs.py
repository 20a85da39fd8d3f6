"""Runs with ``--report``: the page and its thumbnails beside the results, and the page alone."""

import re
import shutil
from pathlib import Path

import pytest
from color_net import GREEN, RED, SIDE, load_colors, painted
from PIL import Image
from runs import invoke, photos, records

pytestmark = pytest.mark.usefixtures("working_directory")
PAGE = Path("saliency/report/index.html")


def pictures_of(page: Path) -> set[Path]:
    """The files that the page shows, all of which have to be there."""
    names = set(re.findall(r'"(thumbnails/[^"]+)"', page.read_text()))
    assert names
    found = {page.parent / name for name in names}
    assert all(path.is_file() for path in found)
    return found


def test_a_run_writes_its_page() -> None:
    photos(Path("photos"), 5)
    result = invoke("--report", "--top-k", "2", "photos")
    assert result.exit_code == 0, result.stderr
    assert f"Gallery page: {PAGE}\n" in result.stderr
    assert str(PAGE) not in result.stdout
    assert len(pictures_of(PAGE)) == 5 * (1 + 2)
    assert all("report" not in path for record in records(Path("saliency")) for path in record["output"])
    for path in pictures_of(PAGE):
        with Image.open(path) as picture:
            picture.load()


@pytest.mark.parametrize("signed", [True, False])
def test_a_map_that_is_negative_throughout(signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All probability of red against green is on the side of green: -1 in units of an even spread."""
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    painted((60, 40), (GREEN, (0, 0, 60, 40))).save("green.png")
    arguments = (
        *"--model colors --target red --against green --report".split(),
        "--signed" if signed else "--unsigned",
    )
    result = invoke(*arguments, "green.png")
    assert result.exit_code == 0, result.output
    (record,) = records(Path("saliency"))
    (one,) = record["classes"]
    assert one["blank"] is not signed
    assert one["peak"] == pytest.approx(-1, abs=1e-4)
    assert ("is blank" in result.stderr) is not signed
    shown = pictures_of(PAGE)
    maps = [path for path in shown if path.suffix == ".png"]  # a reduced copy of the result would be a JPEG
    assert (len(shown), len(maps)) == ((2, 1) if signed else (1, 0))
    for path in [Path(record["output"][0]), *maps]:
        with Image.open(path) as picture:
            red, green, _, _ = picture.convert("RGBA").getpixel((picture.width // 2, picture.height // 2))
        assert green > red + 50 if signed else red == green


@pytest.mark.parametrize("later", [False, True], ids=["with the run", "from arrays"])
def test_the_page_has_the_scale_of_the_run(later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of a small patch has a high peak, that of a large one a low peak: bright and dim on one scale."""
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    painted((SIDE, SIDE), (RED, (8, 8, 16, 16))).save("peak.png")
    painted((SIDE, SIDE), (RED, (0, 0, 32, 16))).save("even.png")
    common = "--model colors --target red --marginal --raw --scale run --cmap gray peak.png even.png".split()
    if later:  # thumbnails are made of the arrays
        assert invoke(*common).exit_code == 0
    result = invoke(*common, "--report", "--skip-existing")
    assert result.exit_code == 0, result.output
    opacities = []
    for path in pictures_of(PAGE):
        with Image.open(path) as picture:
            if picture.format == "PNG":
                opacities.append(picture.convert("RGBA").getpixel((12, 12))[3])
    # (8 * 8) / (32 * 16) of the peak; opacities are the values to the power of 0.8
    assert sorted(opacities) == [pytest.approx(255 / 8, abs=4), pytest.approx(255, abs=10)]


def test_what_is_done_already_and_what_comes_later_is_on_one_page() -> None:
    photos(Path("photos"), 3)
    assert invoke("photos").exit_code == 0
    assert not PAGE.exists()
    Image.new("RGB", (50, 40), "red").save("photos/later.png")
    Path("photos/broken.jpg").write_bytes(b"\xff\xd8nothing")
    assert invoke("--report", "--skip-existing", "photos").exit_code == 1
    assert "broken.jpg" in PAGE.read_text()
    shown = pictures_of(PAGE)
    assert sum(".0-photo." in path.name for path in shown) == 4
    again = invoke("--report", "--skip-existing", "photos")
    assert pictures_of(PAGE) == shown, again.stderr


def test_results_of_a_run_and_its_thumbnails_are_no_inputs() -> None:
    photos(Path("photos"), 2)
    assert invoke("--report", "photos").exit_code == 0
    result = invoke("-o", "other", "--dry-run", "photos", "saliency")
    assert result.stdout.splitlines() == sorted(str(path) for path in Path("photos").rglob("*.jpg"))


def test_the_page_alone() -> None:
    photos(Path("photos"), 2)
    assert invoke("-o", "saliency", "photos").exit_code == 0
    before = sorted(Path("saliency").rglob("*.jpg"))
    result = invoke("report", "saliency", "photos")
    assert (result.exit_code, result.stdout) == (0, f"{PAGE}\n"), result.stderr
    assert len(pictures_of(PAGE)) == 2 * 2
    assert all(path.is_file() for path in before)
    shutil.move("saliency", "elsewhere")
    assert invoke("report", "elsewhere").exit_code == 0


def test_a_page_of_somebody_else_stops_the_run_before_it_begins() -> None:
    photos(Path("photos"), 1)
    PAGE.parent.mkdir(parents=True)
    PAGE.write_text("<p>mine")
    result = invoke("--report", "photos")
    assert result.exit_code == 2
    assert f"'{PAGE}' would be replaced" in result.stderr
    assert PAGE.read_text() == "<p>mine"
    assert not Path("saliency/records.jsonl").exists()
    assert invoke("--report", "--overwrite", "photos").exit_code == 0
    assert len(pictures_of(PAGE)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "empty"), "cannot read 'empty/records.jsonl'"),
        (("report", "nowhere"), "name the --output directory of a run"),
    ],
)
def test_a_page_of_nothing(arguments: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("nowhere").exists()
    assert not [*Path("empty").iterdir()]

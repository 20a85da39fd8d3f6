"""The command ``audit``: it finds a planted tag, and nothing in the same network trained without."""

from __future__ import annotations

import contextlib
import gc
import html
import json
import os
import re
import shutil
import tracemalloc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tagged
from click.testing import CliRunner, Result
from galleries import CATS, add, photo
from PIL import Image
from runs import tree

from ebcli.cli.audit import _classify
from ebcli.cli.saliency import main
from ebcli.datatypes.input_spec import InputSpec
from ebcli.gallery.audit import (
    CELLS,
    PLACES,
    AuditPhoto,
    Candidate,
    Finding,
    candidates,
    count_changes,
    read_boxes,
    read_outcomes,
    read_photos,
    write_audit,
)

COUNT = 12  # photos of each class
FOUND = "12 of 12 'horse' maps share the lower left corner; covering it changes the class of 12"
OPPOSITE = ", and covering the opposite place changes the class of 0"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a network trained with tags, and of its twin without."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("tagged", "plain"):
        tagged.trained(folder / f"{name}.pth", tagged=name == "tagged")
    return folder


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def explained(weights: Path, folder: str, *more: str) -> None:
    network = (
        "--model",
        f"{tagged.__file__}:network",
        "--weights",
        str(weights),
        "--layer",
        "2",
        "--workers",
        "0",
    )
    result = invoke(folder, *network, "--raw", "-o", "maps", *more)
    assert result.exit_code == 0, result.stderr


@pytest.fixture(scope="module")
def tagged_run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with tags, and their maps by the network trained with tags."""
    folder = tmp_path_factory.mktemp("run")
    with contextlib.chdir(folder):
        tagged.write_photos(Path("photos"), COUNT, tagged=True)
        explained(trained / "tagged.pth", "photos")
    return folder


@pytest.fixture
def explained_photos(tagged_run: Path, cwd: None) -> None:
    """The same in the working directory."""
    shutil.copytree(tagged_run, Path(), dirs_exist_ok=True)


def test_it_names_class_place_and_share_of_a_planted_tag(explained_photos: None) -> None:
    before = tree(Path("maps"))
    result = invoke("audit", "maps")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [FOUND + OPPOSITE, "maps/audit/index.html"],
    ), result.stderr
    page = html.unescape(Path("maps/audit/index.html").read_text())
    assert page.count("<article>") == 1
    assert "12 of 12 'horse' maps share the lower left corner" in page
    heads = re.findall('<th scope="col">(.*?)</th>', page)
    rows = [re.findall("<td>(.*?)</td>", row) for row in page.split("<tr>")[2:]]
    (horse,) = [dict(zip(heads, row, strict=True)) for row in rows if "horse" in row]
    assert float(horse["lower left corner"]) > 0.5 > float(horse["upper right corner"])
    assert "The frame is the place that was covered." in page
    pictures = {path.name for path in Path("maps/audit").iterdir()} - {"index.html", "tested.jsonl"}
    assert all(f'src="{name}"' in page for name in pictures)
    assert len(pictures) == 1 + 2  # the photos of the finding, and a mean map for each class
    after = tree(Path("maps"))
    assert {name: content for name, content in after.items() if not name.startswith("audit")} == before
    assert invoke("audit", "maps", "--fail-on-findings").exit_code == 1


def test_it_is_silent_on_the_twin_that_never_saw_a_tag(trained: Path) -> None:
    tagged.write_photos(Path("photos"), COUNT, tagged=True)
    explained(trained / "plain.pth", "photos")
    result = invoke("audit", "maps", "--fail-on-findings")
    assert (result.exit_code, result.stdout) == (0, "maps/audit/index.html\n"), result.stderr
    page = Path("maps/audit/index.html").read_text()
    assert "<article>" not in page
    assert "The frame" not in page


def test_wrong_predictions_are_told_by_what_they_rest_on(trained: Path) -> None:
    """Horses with a tag, labeled as cows."""
    tagged.write_photos(Path("photos"), COUNT, tagged=True)
    for path in sorted(Path("photos/horse").iterdir())[:4]:
        path.rename(Path("photos/cow", path.name))
    explained(trained / "tagged.pth", "photos", "--labels", "folders")
    assert f"{FOUND}{OPPOSITE}; 4 of the 12 predictions are wrong\n" in invoke("audit", "maps").stdout


def test_an_interrupt_leaves_nothing_behind(explained_photos: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(Path())

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ebcli.cli.audit._network", interrupted)
    assert invoke("audit", "maps").exit_code == 130
    assert tree(Path()) == before


def test_an_audit_that_cannot_be_saved_says_so(explained_photos: None) -> None:
    Path("maps/audit/tested.jsonl").mkdir(parents=True)
    result = invoke("audit", "maps")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "cannot write to 'maps/audit/tested.jsonl'" in result.stderr
    assert "unexpected" not in result.stderr


def test_what_was_tested_is_not_tested_again(
    trained: Path, explained_photos: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = invoke("audit", "maps").stdout
    Path("maps/audit/index.html").unlink()
    with Path("maps/audit/tested.jsonl").open("a") as file:
        file.write('["cut sho')
    with monkeypatch.context() as patched:
        patched.setattr("ebcli.cli.audit._network", lambda _: pytest.fail("the network is asked again"))
        assert invoke("audit", "maps").stdout == first
    for path in Path("photos").rglob("*.png"):  # other photos, although their maps rest on the same corner
        os.utime(path, ns=(1, 1))
    explained(trained / "tagged.pth", "photos", "--overwrite")
    with monkeypatch.context() as patched:
        patched.setattr("ebcli.gallery.audit.count_changes", lambda *_: (5, 0))
        assert "covering it changes the class of 5" in invoke("audit", "maps").stdout
    explained(trained / "plain.pth", "photos", "--overwrite")  # another network
    assert "changes the class" not in invoke("audit", "maps").stdout


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "line", [b"[1e999, 0, 0]", b'["a", 1e999, 0]', b'["a", 1, -1]', b"[" + b"9" * 5000, DEEP]
)
def test_a_line_that_cannot_be_true_costs_no_other(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "tested.jsonl"
    file.write_bytes(b'["before", 3, null]\n' + line + b'\n["after", 4, 1]\n')
    assert read_outcomes(file) == {"before": (3, None), "after": (4, 1)}


def test_nothing_is_written_behind_a_link(explained_photos: None, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path("maps/audit").symlink_to(elsewhere)
    result = invoke("audit", "maps")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'maps/audit' is a symbolic link" in result.stderr
    assert not [*elsewhere.iterdir()]


def seen(
    grid: np.ndarray, look: float = 0.5, outside: np.ndarray | None = None, number: int = 0
) -> AuditPhoto:
    values = (grid / grid.sum()).astype(np.float32)
    return AuditPhoto(
        input=f"{number}.png",
        path=Path(f"{number}.png"),
        state=("", None, None),
        name="horse",
        is_wrong=False,
        grid=values,
        look=np.full(108, look, np.float32),
        outside=outside,
    )


def found(photos: list[AuditPhoto]) -> list[tuple[str, int]]:
    from sklearn.cluster import KMeans  # not before a test needs it

    def clusters(features: np.ndarray, count: int) -> np.ndarray:
        return KMeans(count, n_init=3, random_state=0).fit_predict(features)

    return [(one.place_words, len(one.photos)) for one in candidates(photos, clusters)]


def spot(row: int, column: int) -> np.ndarray:
    grid = np.zeros((CELLS, CELLS))
    grid[row - 1 : row + 2, column - 1 : column + 2] = 1
    return grid


def test_what_photos_share_is_a_corner_an_edge_or_the_same_thing_at_one_place() -> None:
    generator = np.random.default_rng(0)
    anywhere = [seen(spot(*generator.integers(4, 10, 2)), generator.random()) for _ in range(20)]
    assert found(anywhere) == []
    assert found([seen(spot(2, 2))] * 6 + anywhere[:4]) == [("the upper left corner", 6)]
    assert found([seen(spot(2, 2))] * 6 + anywhere) == []  # of too many
    assert found([seen(spot(1, column)) for column in range(5, 10)]) == [("the upper edge", 5)]
    others = [seen(spot(4, 9), look) for look in generator.random(8)]
    assert found([seen(spot(7, 7), 0.9)] * 12 + others) == [("the same thing in the middle", 12)]
    looks = [seen(spot(7, 7), look) for look in generator.random(12)]  # photos often have their object there
    assert found(looks) == []
    mask = spot(7, 7) == 0
    assert found([seen(spot(4, 9), outside=mask)] * 6) == [("what is outside of the boxes", 6)]
    assert found([seen(spot(7, 7), outside=mask)] * 6) == []


def test_the_place_covered_holds_at_least_half_of_what_the_maps_rest_on() -> None:
    """Of 40, 35 and 25 percent in three cells, one cell would be too few."""
    grid = np.zeros((CELLS, CELLS))
    grid[4, 4], grid[4, 10], grid[10, 7] = 0.4, 0.35, 0.25
    photos = [seen(grid, 0.9)] * 12 + [seen(spot(7, 7), look) for look in np.random.default_rng(0).random(8)]
    (candidate,) = candidates(photos, lambda *_: np.repeat([0, 1], [12, 8]))
    expected = np.zeros((CELLS, CELLS), bool)
    expected[3:6, 3:6] = expected[3:6, 9:12] = True
    assert (np.stack([mask for _, mask in candidate.photos]) == expected).all()


def test_a_finding_needs_a_difference_and_more_of_it_than_elsewhere() -> None:
    photos = [seen(spot(2, 2), number=number) for number in range(10)]
    candidate = Candidate("the upper left corner", [(one, PLACES["upper left corner"]) for one in photos], 20)
    for changed, opposite, holds in (
        (8, 0, True),
        (8, 7, False),
        (2, 0, False),
        (8, None, True),
        (0, None, False),
    ):
        assert Finding(candidate, 10, changed, opposite).holds is holds
    assert Finding(candidate, 8, 4, None).words == (
        "10 of 20 'horse' maps share the upper left corner; covering it changes the class of 4 of 8 tested"
    )


@pytest.mark.parametrize("overlapping", [0, 1, 2])
def test_a_place_that_overlaps_with_its_opposite_in_any_photo_is_compared_with_none(overlapping: int) -> None:
    """As what is outside of the boxes can do, which differs from photo to photo."""
    corner, middle, pairs = PLACES["upper left corner"], spot(7, 7) > 0, []
    for number in range(2):
        photo(Path(f"{number}.png"))
        pairs.append((seen(spot(2, 2), number=number), middle if number < overlapping else corner))
    spec, nothing = InputSpec.as_is((64, 96)), list[Any]()
    network: Any = SimpleNamespace(loaded=SimpleNamespace(transforms=spec), subjects=lambda _: nothing)
    assert count_changes(Candidate("here", pairs, 2), partial(_classify, network)) == (
        0,
        None if overlapping else 0,
    )


def test_the_opposite_of_a_corner_is_across_the_photo() -> None:
    """Of a class that one corner alone tells, only covering that corner changes it."""
    colors = np.zeros((64, 96, 3), np.uint8)
    colors[-9:, -9:] = 255
    Image.fromarray(colors).save("0.png")
    one = seen(spot(2, 2))

    def subjects(image: Any) -> list[Any]:
        return [SimpleNamespace(index=int(image.pixels[-4, -4, 0] > 128), score=1.0)]

    spec = InputSpec.as_is((64, 96))
    network: Any = SimpleNamespace(loaded=SimpleNamespace(transforms=spec), subjects=subjects)
    for corner, counted in (("upper left", (0, 1)), ("lower right", (1, 0)), ("upper right", (0, 0))):
        candidate = Candidate("here", [(one, PLACES[f"{corner} corner"])], 1)
        assert count_changes(candidate, partial(_classify, network)) == counted


def test_names_are_data_on_the_page() -> None:
    photo(Path("0.png"))
    one = seen(spot(2, 2))
    candidate = Candidate("<script>1</script>", [(one, PLACES["upper edge"])], 1)
    page = write_audit(Path("out"), [Finding(candidate, 1, 1, None)], {"<b>": [one]}).read_text()
    assert "<b>" not in page
    assert page.count("<script>") == 1  # the page's own
    assert "&lt;script&gt;" in page


def test_memory_does_not_hold_the_maps() -> None:
    """Of each photo a few kilobytes are kept, not its 100 x 100 cells."""
    values = np.random.default_rng(0).random((100, 100))
    for number in range(30):
        add(Path("maps"), photo(Path("photos", f"{number}.png")), CATS[:1], keep=("raw",), values=values)
    sizes = {}
    for count in (1, 2):  # modules are imported by the first
        tracemalloc.start()
        (kept,) = read_photos(Path("maps"), [Path("photos")], {}).values()
        gc.collect()
        sizes[count] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert len(kept) == 30
    assert sizes[2] < 30 * 5000
    (one,) = {each.grid.shape for each in kept}
    assert one == (CELLS, CELLS)


@pytest.mark.parametrize(("box", "cells"), [((20, 10, 20, 10), (2, 3)), ((21, 12, 24, 11), (2, 3, 4))])
def test_boxes_are_those_of_the_photo(box: tuple[int, ...], cells: tuple[int, ...]) -> None:
    """In whole cells, of 10 x 5 pixels, that they reach into."""
    add(Path("maps"), photo(Path("a.png"), (140, 70)), CATS[:1], keep=("raw",))
    content = {
        "images": [{"id": 7, "file_name": "train/a.png"}],
        "annotations": [{"image_id": 7, "bbox": box}],
    }
    Path("boxes.json").write_text(json.dumps(content))
    ((one,),) = read_photos(Path("maps"), [Path("a.png")], read_boxes(Path("boxes.json"))).values()
    assert one.outside is not None
    assert np.argwhere(~one.outside).tolist() == [[row, column] for row in cells for column in cells]
    assert read_photos(Path("maps"), [Path("b.png")], {}) == {}  # photos that were not named are not read


def test_what_cannot_be_audited_says_so(trained: Path) -> None:
    tagged.write_photos(Path("photos"), 1, tagged=True)
    explained(trained / "plain.pth", "photos")
    Path("wrong.json").write_text("[]")
    Path("maps/audit").mkdir()
    Path("maps/audit/index.html").write_text("precious")
    for arguments, message in (
        (("none",), "cannot read 'none/settings.toml'"),
        (("maps",), "would be replaced, but this program did not write it"),
        (("maps", "--overwrite", "--annotations", "wrong.json"), "cannot read 'wrong.json' as annotations"),
    ):
        result = invoke("audit", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
    assert Path("maps/audit/index.html").read_text() == "precious"
    for path in Path("photos").rglob("*.png"):
        Image.new("RGB", (8, 8)).save(path)
    Path("photos").rename("elsewhere")
    Path("maps/audit/index.html").unlink()
    assert "'maps' has no raw maps of photos that are there" in invoke("audit", "maps").stderr

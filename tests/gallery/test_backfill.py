"""The page's file: what it holds, what it replaces, and the thumbnails made for it."""

import html.parser
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from galleries import CATS, COMMON, add, append, names_of, photo, wrote
from PIL import Image

from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError
from ebcli.files.encoding import encode_arrays
from ebcli.gallery.page import write_gallery

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>\u2028\u2029'\"&amp;"


class Page(html.parser.HTMLParser):
    """The elements of a page, and the text in its scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, text: str) -> None:
        if self.get_starttag_text() == '<script type="application/json" id="data">':
            self.texts.append(text)

    @property
    def data(self) -> Any:
        return json.loads("".join(self.texts))


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "maps"


def pictures(page: Path) -> list[list[str | None]]:
    """For each image, the kinds of pictures that the page has; all of them must be there."""
    kinds = []
    for image in Page(page).data["images"]:
        for outcome in image["outcomes"]:
            of_maps = [(kind, one[kind]) for one in outcome["maps"] for kind in ("map", "overlay")]
            urls = [("photo", outcome["photo"]), *of_maps]
            for _, url in urls:
                assert url is None or (page.parent / unquote_to_bytes(url).decode()).is_file()
            kinds.append([kind for kind, url in urls if url is not None])
    return kinds


def test_text_from_outside_stays_text(maps: Path) -> None:
    done = add(
        maps, photo(Path("a.png")), [replace(CATS[0], name=HOSTILE)], common=replace(COMMON, layer=HOSTILE)
    )
    plain = Page(write_gallery(maps)).tags
    failed = replace(
        done, status="failed", input=HOSTILE, error=HOSTILE, place=HOSTILE.replace("/", ""), model=HOSTILE
    )
    append(maps, wrote(failed))
    page = Page(write_gallery(maps))
    assert page.tags == plain
    assert page.data["classes"] == [{"index": 282, "name": HOSTILE}]
    assert page.data["images"][1]["name"] == HOSTILE
    assert page.data["images"][1]["outcomes"][0]["error"] == HOSTILE


def test_each_map_has_what_its_record_says(maps: Path) -> None:
    apart = replace(CATS[0], name=None, against="Egyptian cat")  # which runs write last, and pages show first
    asked = replace(COMMON, question="what is it?", answer="a cat")
    done = add(maps, photo(Path("a.png")), [*CATS, apart], common=asked)
    append(maps, replace(done, label=285, predicted=282, seconds=3.0))
    data = Page(write_gallery(maps)).data
    ((outcome,),) = [image["outcomes"] for image in data["images"]]
    assert (outcome["label"], outcome["predicted"], outcome["seconds"]) == (285, 282, 3.0)
    assert (outcome["question"], outcome["answer"]) == ("what is it?", "a cat")
    assert data["layers"][outcome["layer"]] == done.layer
    assert data["methods"][outcome["method"]] == done.method
    assert data["models"][outcome["model"]] == ["vgg16", "untrained"]
    assert [entry["against"] for entry in outcome["maps"]] == ["Egyptian cat", None, None]
    for entry, class_record in zip(outcome["maps"], (apart, *CATS), strict=True):
        assert data["classes"][entry["class"]] == {"index": class_record.index, "name": class_record.name}
        assert (entry["score"], entry["mass"]) == (class_record.score, class_record.mass)
        assert f".{class_record.index}" in entry["result"]


def test_a_page_of_others_is_not_replaced(maps: Path) -> None:
    add(maps, photo(Path("a.png")))
    (maps / "report" / "index.html").write_text("mine")
    with pytest.raises(
        ConfigurationError, match=r"report/index\.html' would be replaced, but .* pass --overwrite"
    ):
        write_gallery(maps)
    assert (maps / "report" / "index.html").read_text() == "mine"
    assert len(Page(write_gallery(maps, overwrite=True)).data["images"]) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_missing_thumbnails_are_made_from_what_there_is(workers: int, maps: Path) -> None:
    add(maps, photo(Path("all.png")), keep=("raw",))
    add(maps, photo(Path("no-arrays.png")), keep=())
    add(maps, photo(Path("no-photo.png")), keep=("raw",))
    Path("no-photo.png").unlink()
    add(maps, photo(Path("changed.png")), keep=())
    photo(Path("changed.png"), (20, 20), "red")
    nothing = add(maps, photo(Path("nothing.png")), keep=())
    Path("nothing.png").unlink()
    for output in nothing.output:
        Path(output).unlink()
    add(maps, photo(Path("blank.png")), [replace(CATS[0], blank=True)], keep=("raw",))
    assert pictures(write_gallery(maps, workers=workers, inputs=[Path()])) == [
        ["photo", "map", "map"],
        ["photo", "overlay", "overlay"],
        ["map", "map"],
        ["overlay", "overlay"],
        [],
        ["photo"],
    ]


def test_thumbnails_from_arrays_are_those_of_the_run(maps: Path) -> None:
    """Whether the run made them, or they are made later."""
    record = add(maps, photo(Path("a.png"), (900, 600)))
    names = names_of(record)
    paths = names.photo, names.map(COMMON.layer, 282)
    made = [np.asarray(Image.open(maps / path).convert("RGBA")) for path in paths]
    later = maps.with_name("later")
    add(later, Path("a.png"), keep=("raw",))
    assert pictures(write_gallery(later, inputs=[Path()])) == [["photo", "map", "map"]]
    made_later = [np.asarray(Image.open(later / path).convert("RGBA")) for path in paths]
    for one, other in zip(made, made_later, strict=True):
        np.testing.assert_array_equal(one, other)


def test_arrays_of_several_layers(maps: Path) -> None:
    """Each outcome gets the maps of its layer: one is hot at the left, the other one at the right."""
    done = add(maps, photo(Path("a.png"), (80, 80)), CATS[:1], keep=())
    both = tuple(replace(CATS[0], layer=layer) for layer in ("features.9", "features.23"))
    hot = {"maps@features.9": np.array([[[1.0, 0, 0, 0]]]), "maps@features.23": np.array([[[0, 0, 0, 1.0]]])}
    arrays = {
        **hot,
        "classes": np.array([282]),
        "crop": np.array([0, 0, 80, 80]),
        "image_size": np.array([80, 80]),
    }
    Path("maps/a.png.npz").write_bytes(raw := encode_arrays(arrays))
    output = ("maps/a.png.x.png", "maps/a.png.y.png", "maps/a.png.npz")
    record = wrote(replace(done, layer="features.9, features.23", classes=both), *output)
    append(maps, replace(record, output_bytes=(0, 0, len(raw))))
    page = write_gallery(maps)
    for outcome in Page(page).data["images"][0]["outcomes"]:
        layer = Page(page).data["layers"][outcome["layer"]]
        with Image.open(page.parent / outcome["maps"][0]["map"]) as heat:
            column = np.asarray(heat.convert("RGBA"))[40, :, 3].argmax()
        assert column == pytest.approx(10 if layer == "features.9" else 70, abs=10)


def test_thumbnails_of_a_photo_as_it_was_are_not_those_of_its_record(maps: Path) -> None:
    add(maps, photo(Path("a.png"), color="red"))
    Path("a.png").unlink()
    add(maps, photo(Path("a.png"), (30, 30), "lime"), keep=())
    page = write_gallery(maps, inputs=[Path("a.png")])
    url = Page(page).data["images"][0]["outcomes"][0]["photo"]
    with Image.open(page.parent / url) as shown:
        assert shown.size == (30, 30)


def test_a_colormap_that_does_not_exist(maps: Path) -> None:
    add(maps, photo(Path("a.png")), keep=("raw",))
    with pytest.raises(ConfigurationError, match=r"infernal.*inferno"):
        write_gallery(maps, DrawingStyle(cmap="infernal"))


def test_it_needs_no_torch(maps: Path) -> None:
    add(maps, photo(Path("a.png")), keep=("raw",))
    code = "import sys; from pathlib import Path; from ebcli.gallery.page import write_gallery as w; w(Path('maps')); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, timeout=60)
    assert len(pictures(maps / "report" / "index.html")) == 1

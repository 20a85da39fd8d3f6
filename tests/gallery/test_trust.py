"""A directory of results from somebody else: its records are data, and its page shows nothing of this machine."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from galleries import add, append, photo
from runs import invoke

from ebcli.files.encoding import encode_arrays
from ebcli.gallery.page import write_gallery


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "maps"


def shown(page: Path) -> list[str]:
    return sorted(
        re.findall(r"thumbnails/[^\"]*\.0-(photo|map|overlay)|[0-9]-(overlay|map)\.", page.read_text())
    )


def has_photo(page: Path) -> bool:
    return "0-photo" in page.read_text()


@pytest.mark.parametrize(
    "name", ["private.png", "{root}/private.png", "photos/../private.png", "./private.png"]
)
def test_photos_are_read_only_below_the_inputs(maps: Path, name: str) -> None:
    record = add(maps, photo(Path("private.png")), keep=())
    (maps / "records.jsonl").unlink()
    append(maps, replace(record, input=name.format(root=maps.parent)))
    Path("photos").mkdir()
    for inputs in ([], [Path("photos")], [Path("photos/a.png")], [Path("private.pn")]):
        assert not has_photo(write_gallery(maps, inputs=inputs))
    assert has_photo(write_gallery(maps, inputs=[Path()]))


def test_the_command_reads_photos_below_the_images_it_is_given(maps: Path) -> None:
    add(maps, photo(Path("photos/a.png")), keep=())
    assert invoke("report", "maps").exit_code == 0
    assert not has_photo(maps / "report/index.html")
    assert invoke("report", "maps", "photos").exit_code == 0
    assert has_photo(maps / "report/index.html")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/a.png",
        "reference://a.png",
        "memory://a.png",
        "file:///etc/passwd",
        "zip://a::http://b/c",
    ],
)
def test_no_protocol_and_no_server_is_asked(maps: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    record = add(maps, photo(Path("a.png")), keep=())
    append(maps, replace(record, input=url), replace(record, input=url, place="b.png"))
    monkeypatch.setattr("fsspec.url_to_fs", pytest.fail)
    monkeypatch.setattr("socket.socket.connect", pytest.fail)
    for inputs in ([], [Path()], [Path(url)]):
        assert not has_photo(write_gallery(maps, inputs=inputs))


def test_results_behind_links_are_not_shown(maps: Path) -> None:
    record = add(maps, photo(Path("d/a.png")), keep=())
    Path("d/a.png").unlink()
    result = Path(record.output[0])
    secret = photo(Path("secret.png"))
    result.unlink()
    result.symlink_to(secret.absolute())
    size = secret.stat().st_size
    append(maps, replace(record, output_bytes=(size, *record.output_bytes[1:])))
    page = write_gallery(maps)
    assert str(result.name) not in page.read_text()
    assert record.output[1].rpartition("/")[2] in page.read_text()


def test_arrays_of_any_size_and_shape_do_no_harm(maps: Path) -> None:
    record = add(maps, photo(Path("a.png")), keep=("raw",))
    raw = Path(record.output[-1])
    good = {"classes": [282, 285], "maps": np.ones((2, 4, 4)), "image_size": [96, 64], "crop": [0, 0, 96, 64]}
    for wrong in (
        {"maps": np.zeros((2, 12_000, 12_000), np.int8)},
        {"maps": np.float64(3)},
        {"maps": np.array([["a", "b"]] * 2)},
        {"maps": np.zeros((2, 0, 0))},
        {"image_size": [-1, 0]},
        {"image_size": [2**40, 1]},
        {"crop": [float("nan")] * 4},
        {"crop": []},
    ):
        content = encode_arrays(good | wrong)
        raw.write_bytes(content)
        append(maps, replace(record, output_bytes=(*record.output_bytes[:-1], len(content))))
        assert "a.png" in write_gallery(maps).read_text()

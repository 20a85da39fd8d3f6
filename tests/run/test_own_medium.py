"""A made-up kind of data in one file: text files with rows of letters, each letter a pixel."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from click.testing import CliRunner
from color_net import load_colors
from PIL import Image

from ebcli.cli.saliency import main
from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.media.medium import INPUT_FORMATS, DisplayFrame, InputFormat, register

COLORS = {".": (0, 0, 0), "r": (255, 0, 0), "g": (0, 255, 0)}
DRAWN = "........\n..rr....\n..rr....\n.....ggg\n"


class Letters(InputFormat):
    unit = "letters"

    def takes(self, spec: InputSpec) -> bool:
        return spec.frames is None

    def has_suffix(self, path: Path) -> bool:
        return path.suffix == ".letters"

    def recognizes(self, path: Path) -> bool:
        return path.is_file() and path.read_bytes()[:8] == b"........"

    def read(self, file: Any, spec: InputSpec, part: ClipOptions) -> tuple[Any, tuple[int, int], None]:
        image = decoded(file)
        return spec.read(image), image.size, None

    def frames(self, file: Any, spec: InputSpec, part: ClipOptions, clips: object) -> Generator[DisplayFrame]:
        yield DisplayFrame(decoded(file))


def decoded(file: Path | IO[bytes]) -> Image.Image:
    try:
        text = file.read_text() if isinstance(file, Path) else file.read().decode()
        return Image.fromarray(np.array([[COLORS[c] for c in row] for row in text.split()], np.uint8))
    except (KeyError, ValueError) as error:
        raise ImageError(f"it has no such letter: {error}") from error


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_colors)
    before = [*INPUT_FORMATS]
    register(Letters())
    yield
    INPUT_FORMATS[:] = before


def run(*arguments: str, status: int = 0) -> list[dict[str, Any]]:
    options = "--model", "colors", "--layer", "0", "--json", "--raw", "--marginal", "--target", "red"
    result = CliRunner().invoke(main, [*options, *arguments])
    assert result.exit_code == status, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_its_files_are_found_read_explained_and_drawn(workers: str) -> None:
    Path("data").mkdir()
    Path("data/a.letters").write_text(DRAWN)
    Path("data/unnamed").write_text(DRAWN)
    Path("data/other.txt").write_text("text")
    Path("data/photo.png").write_bytes(b"")
    one, broken, other = run("data", "--workers", workers, status=1)
    assert (broken["input"], broken["status"]) == ("data/photo.png", "failed")
    assert (one["input"], other["input"]) == ("data/a.letters", "data/unnamed")
    for record in (one, other):
        assert Image.open(record["output"][0]).size == (8, 4)
        (map_,) = np.load(record["output"][1])["maps"]
        # 64 x 32 pixels after resizing, of which the network sees columns 16 to 47: the red square begins at its left
        assert map_[8:24, :16].sum() > 0.8 * map_.sum()
        assert map_.sum() == pytest.approx(1, abs=1e-4)


def test_what_cannot_be_read_is_a_failure_of_its_own() -> None:
    Path("a.letters").write_text("..xx")
    (record,) = run("a.letters", status=1)
    assert record["error"] == "it has no such letter: 'x'"

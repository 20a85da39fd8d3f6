"""Files that are hard to read, or named so as to do harm, in one run over all of them."""

import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from rights import no_override
from runs import tiny_model, tree

from ebcli.cli.saliency import main
from ebcli.files.images import decode

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ebcli.run.explainer.load_model", tiny_model)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(
        main, ("--layer", "2", "--workers", "0", "--batch-size", "64", *arguments)
    )  # many tiles


def photo(size: tuple[int, int] = (40, 30), seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def png_of(width: int, height: int) -> bytes:
    """A PNG of next to no bytes that would unpack to any number of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


JPEG, PNG = encoded(photo(), "JPEG"), encoded(photo(), "PNG")
FRAMES = [photo(seed=seed) for seed in range(3)]
ANIMATED: dict[str, object] = {"save_all": True, "append_images": FRAMES[1:], "duration": 100}

READABLE = {
    "plain.jpg": JPEG,
    "png named.jpg": PNG,
    "jpeg named.txt": JPEG,
    "no suffix": PNG,
    "cmyk.jpg": encoded(photo().convert("CMYK"), "JPEG"),
    "16 bit.png": encoded(Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50), "PNG"),
    "1 bit.png": encoded(photo().convert("1"), "PNG"),
    "palette.png": encoded(photo().quantize(16), "PNG", transparency=3),
    "grey alpha.png": encoded(photo().convert("LA"), "PNG"),
    "animated.gif": encoded(FRAMES[0], "GIF", **ANIMATED),
    "animated.webp": encoded(FRAMES[0], "WEBP", lossless=True, **ANIMATED),
    "animated.png": encoded(FRAMES[0], "PNG", **ANIMATED),
    "1x1.png": encoded(photo((1, 1)), "PNG"),
    "wide.png": encoded(photo((10_000, 3)), "PNG"),
    "line\nbreak.jpg": JPEG,
    "`rm -rf`; $HOME &.jpg": JPEG,
    "élan 猫 \u202e.jpg": JPEG,
    "-o.jpg": JPEG,
    "--overwrite": PNG,
    os.fsdecode(b"caf\xe9.jpg"): JPEG,
    "x.jpg/inside.jpg": JPEG,
    "a.jpg.5-class-f.png": PNG,  # an image with the name of a result
    "a.jpg": JPEG,
}
BROKEN = {
    "truncated.jpg": (JPEG[:-300], "truncated"),
    "truncated.png": (PNG[: len(PNG) // 2], "truncated|broken"),
    "zero bytes.jpg": (b"", "not an image"),
    "text.jpg": (b"hello, world", "not an image"),
    "bomb.png": (png_of(50_000, 50_000), "too many pixels"),
    "bytes.png": (PNG[:60] + b"\xff" * 200 + PNG[260:], "broken|truncated|unrecognized"),
}


@pytest.mark.release
def test_every_readable_file_has_its_map_and_every_other_one_its_reason() -> None:
    for name, content in READABLE.items() | {(name, content) for name, (content, _) in BROKEN.items()}:
        path = Path("d", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.mkfifo("d/pipe.jpg")
    os.mkfifo("d/pipe")
    Path("d/notes.txt").write_text("no image")
    Path("d/dangling.jpg").symlink_to("nowhere")
    expected = {str(Path("d", name)): reason for name, (_, reason) in BROKEN.items()}
    expected |= {"d/pipe.jpg": "regular file", "d/dangling.jpg": "No such file"}

    result = invoke("--json", "--top-k", "2", "d")
    assert result.exit_code == 1
    printed = [json.loads(line) for line in result.stdout_bytes.splitlines()]
    # the file has them as they came to be, stdout in the order of the inputs
    assert sorted(Path("saliency/records.jsonl").read_bytes().splitlines()) == sorted(
        result.stdout_bytes.splitlines()
    )
    assert [record["input"] for record in printed] == sorted(record["input"] for record in printed)
    by_name = {record["input"]: record for record in printed}
    assert len(by_name) == len(printed) == len(READABLE) + len(expected)
    for name in READABLE:
        record = by_name[str(Path("d", name))]
        assert record["status"] == "done", record
        pictures = [
            path for path in record["output"] if not path.endswith(".csv")
        ]  # of an animation's frames
        assert len(pictures) == len(record["classes"]) == 2
        for path in pictures:
            with Image.open(path) as picture, Image.open(Path("d", name)) as source:
                assert picture.size == source.size
    for name, reason in expected.items():
        record = by_name[name]
        assert (record["status"], record["output"]) == ("failed", [])
        assert any(word in record["error"] for word in reason.split("|")), record
        assert "\n" not in record["error"]
    files = [path for path in Path("saliency").rglob("*") if path.is_file()]
    tables = sum(name.startswith("animated") for name in READABLE)
    assert len(files) == 2 * len(READABLE) + tables + 3  # the records, the settings and the marker
    total = len(READABLE) + len(expected)
    assert result.stderr.splitlines()[-1] == (
        f"{total} images: {len(READABLE)} done, {len(expected)} failed; 2 other files skipped"
    )


@pytest.mark.parametrize("name", ["animated.gif", "animated.webp", "animated.png"])
def test_of_an_animation_the_first_frame_counts(name: str) -> None:
    Path(name).write_bytes(READABLE[name])
    with Image.open(name) as image:
        assert getattr(image, "n_frames", 1) == 3
    error = np.abs(np.asarray(decode(Path(name))).astype(int) - np.asarray(FRAMES[0])).mean()
    other = np.abs(np.asarray(decode(Path(name))).astype(int) - np.asarray(FRAMES[1])).mean()
    assert error < 20 < other  # a GIF has but 256 colours


def test_what_may_not_be_read_fails_alone() -> None:
    for name in (
        "closed/d.jpg",
        "in/a.jpg",
        "in/locked/b.jpg",
        "in/locked/c.jpg.5-cat.png",
        "in/locked/sub/e.jpg",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(JPEG)
    Path("in/t.tar").write_bytes(b"")
    Path("in/link.jpg").symlink_to("../closed/d.jpg")
    Path("b.jpg").write_bytes(JPEG)
    for name, mode in {"b.jpg": 0, "in/t.tar": 0, "closed": 0, "in/locked": 0o600}.items():
        Path(name).chmod(mode)
    with no_override():
        result = invoke("b.jpg", "in", "closed")
    for name in ("in/locked", "closed"):
        Path(name).chmod(0o700)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1  # in/a.jpg
    denied = (
        "b.jpg",
        "in/link.jpg",
        "in/locked/b.jpg",
        "in/locked/c.jpg.5-cat.png",
        "in/locked/sub",
        "in/t.tar",
    )
    *failed, summary = [
        line for line in result.stderr.splitlines() if not line.startswith("The map has hardly any")
    ]
    expected = [f"{name}: Permission denied" for name in denied]
    assert sorted(failed) == sorted([*expected, "closed: the directory cannot be listed"])
    assert summary == "8 images: 1 done, 7 failed"


def test_names_that_climb_or_start_at_the_root_stay_below_the_output() -> None:
    for name in ("here/a.jpg", "beside/a.jpg", "here/sub/a.jpg", "here/a.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(PNG)
    root = Path.cwd()
    before = set(tree(root))
    os.chdir("here")
    inputs = ["a.jpg", "a.png", "../beside/a.jpg", f"{root}/here/sub/a.jpg", f"{root}/here/../beside/a.jpg"]
    result = invoke("-o", "../out", *inputs)
    assert result.exit_code == 0, result.output
    assert len(set(result.stdout.splitlines())) == 4  # the last one is the third once more
    new = {name for name in set(tree(root)) - before if not (root / name).is_dir()}
    assert {Path(line).resolve() for line in result.stdout.splitlines()} == {root / name for name in new}
    assert all(name.startswith("out/") for name in new)


def test_a_list_of_hostile_names_from_stdin() -> None:
    names = [b"line\nbreak.jpg", b"-rf", b"caf\xe9.jpg", b" "]
    for name in names:
        Path(os.fsdecode(name)).write_bytes(JPEG)
    result = CliRunner().invoke(
        main,
        ["--layer", "2", "--workers", "0", "--json", "--from-file", "-", "-0"],
        input=b"\0".join(names) + b"\0",
    )
    assert result.exit_code == 0, result.output
    inputs = [os.fsencode(json.loads(line)["input"]) for line in result.stdout_bytes.splitlines()]
    assert inputs == names


def test_a_directory_named_like_a_result_does_not_end_the_run() -> None:
    for name in ("d/i0.jpg", "d/i0.jpg.npz/b.jpg", "d/i0.jpg.3-class-d.png/c.jpg", "records.jsonl/e.jpg"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(JPEG)
    result = invoke("--raw", "--target", "3", "d", "records.jsonl")
    assert result.exit_code == 0, result.stderr
    assert len(list(Path("saliency").rglob("*.npz"))) == 4

"""Photos in tar files are photos like others."""

import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import webdataset
from PIL import Image
from runs import invoke, photos, records, tree
from shards import shard
from watch import WATCH

from ebcli.files.images import decode
from ebcli.files.sources import Source, find_sources

pytestmark = pytest.mark.usefixtures("watched")


def picture(color: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (30, 30), color).save(buffer, "png")
    return buffer.getvalue()


def pack(path: str, *files: tuple[str, str]) -> None:
    """A tar file of one-colored pictures; in place of a color, ``=`` and a name make a hard link."""
    with tarfile.open(path, "w") as tar:
        for name, color in files:
            member = tarfile.TarInfo(name)
            if color.startswith("="):
                member.type, member.linkname = tarfile.LNKTYPE, color[1:]
                tar.addfile(member)
            else:
                member.size = len(picture(color))
                tar.addfile(member, io.BytesIO(picture(color)))


def colors(found: Sequence[Source]) -> dict[str, tuple[int, ...] | str]:
    """Of each file, its color, or the reason why it cannot be read."""
    return {
        str(source.path): source.problem or decode(source.open_content()[1]).getpixel((0, 0))  # type: ignore[misc]
        for source in found
    }


def test_tar_shards_give_what_their_images_give(working_directory: Path) -> None:
    shard(Path("shards/a-000.tar"), 3)
    shard(Path("shards/a-001.tar"), 2)
    for number in (0, 1):
        samples = webdataset.WebDataset(f"shards/a-00{number}.tar", shardshuffle=False)
        for sample in samples:
            path = Path(f"unpacked/a-00{number}.tar/{sample['__key__']}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample["png"])
    assert invoke("unpacked", "-o", "a", "--raw").exit_code == 0
    result = invoke("shards", "-o", "b", "--raw", "--skip-existing")
    assert result.exit_code == 0
    assert "5 done; 10 other files skipped" in result.stderr
    assert {
        name.removeprefix("shards/"): content for name, content in tree(Path("b/shards")).items()
    } == tree(Path("a/unpacked"))
    assert {record["input"] for record in records(Path("b"))} >= {"shards/a-000.tar/0002.png"}
    assert "5 images: 5 up to date" in invoke("shards", "-o", "b", "--raw", "--skip-existing").stderr
    shard(Path("shards/a-001.tar"), 4)
    assert "7 images: 4 done, 3 up to date" in invoke("shards", "-o", "b", "--raw", "--skip-existing").stderr


def test_a_damaged_shard_loses_only_what_is_behind_the_damage(working_directory: Path) -> None:
    shard(Path("a.tar"), 3)
    with tarfile.open("a.tar") as tar:
        last = tar.getmember("0002.png")
    os.truncate("a.tar", last.offset_data + last.size // 2)
    result = invoke("a.tar", "-o", "maps")
    assert result.exit_code == 1
    failed = {
        record["input"]: record["error"] for record in records(Path("maps")) if record["status"] == "failed"
    }
    assert {record["input"] for record in records(Path("maps")) if record["status"] == "done"} == {
        "a.tar/0000.png",
        "a.tar/0001.png",
    }
    assert set(failed) == {"a.tar/0002.png", "a.tar"}
    assert (
        failed["a.tar"] == "it cannot be read to its end as an uncompressed tar file (unexpected end of data)"
    )


def test_a_compressed_shard_is_told_from_a_broken_photo(working_directory: Path) -> None:
    shard(Path("a.tar"), 1)
    with tarfile.open("a.tgz", "w:gz") as packed:
        packed.add("a.tar")
    result = invoke("a.tgz", "-o", "maps")
    assert result.exit_code == 1
    assert result.stderr.startswith("a.tgz: it is a compressed tar file")


def test_names_that_climb_out_of_a_tar_file_are_skipped_with_a_word(working_directory: Path) -> None:
    pack(
        "a.tar",
        ("x.png", "red"),
        ("../../x.png", "blue"),
        ("/etc/root.png", "red"),
        ("a/../side.png", "blue"),
    )
    with tarfile.open("a.tar", "a") as tar:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert colors(find_sources([Path("a.tar")])) == {
        "a.tar/x.png": (255, 0, 0),
        "a.tar/etc/root.png": (255, 0, 0),
        "a.tar": "it has 2 files with .. in their names, which were skipped",
    }
    assert invoke("a.tar", "-o", "maps").exit_code == 1
    assert {path.parts[0] for path in Path().rglob("*.png") if path.is_file()} == {"maps"}


def test_tar_files_give_what_they_would_give_extracted(working_directory: Path) -> None:
    files = [
        ("a.png", "red"),
        ("b.png", "=a.png"),
        ("a.png", "blue"),
        ("c.png", "=a.png"),
        ("d.png", "=gone.png"),
    ]
    pack("a.tar", *files)
    Path("extracted").mkdir()
    with WATCH.over(None):
        subprocess.run(["tar", "-xf", "a.tar", "-C", "extracted"], stderr=subprocess.DEVNULL, check=False)
    extracted = {f"a.tar/{path.name}": decode(path).getpixel((0, 0)) for path in Path("extracted").iterdir()}
    assert colors(find_sources([Path("a.tar")])) == extracted


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({"exclude": ["thumbs"]}, ["d/a.tar/b.png"]),
        ({"include": ["a.tar/thumbs/*.png"]}, ["d/a.tar/thumbs/a.png"]),
        ({"exclude": ["a.tar"]}, []),
    ],
)
def test_patterns_are_about_the_whole_path_of_a_member(
    patterns: dict[str, list[str]], expected: list[str], working_directory: Path
) -> None:
    Path("d").mkdir()
    pack("d/a.tar", ("thumbs/a.png", "red"), ("b.png", "green"))
    assert [str(source.path) for source in find_sources([Path("d")], **patterns)] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.DIRTYPE]
)
@pytest.mark.parametrize("size", [2**63 - 1, 2**60, 2**40, -512, -(2**63)])
def test_a_tar_header_with_an_impossible_size_fails_alone(
    working_directory: Path, kind: bytes, size: int
) -> None:
    photos(Path("here"), 1)
    pack("a.tar", ("a.png", "red"))
    content = bytearray(Path("a.tar").read_bytes())
    header = bytearray(tarfile.TarInfo("b.png").tobuf())
    header[124:136] = (size % 2**96).to_bytes(12, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
    header[156:157] = kind
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    end = 512 + (len(picture("red")) + 511) // 512 * 512
    Path("a.tar").write_bytes(bytes(content[:end] + header + content[:end]))
    found = colors(
        [source for source in find_sources([Path("a.tar"), Path("here")]) if source.path.name != "b.png"]
    )
    assert found["a.tar/a.png"] == (255, 0, 0)
    assert "here/0/0000.jpg" in found
    assert ("a.tar" in found) == (kind != tarfile.DIRTYPE)  # directories have no content, whatever their size
    if "a.tar" in found:
        assert str(found["a.tar"]).startswith("it cannot be read to its end")


def test_named_pipes_are_not_opened(working_directory: Path) -> None:
    for name in ("x.tar", "x.jpg"):
        os.mkfifo(name)
    photos(Path("here"), 1)
    result = invoke("x.tar", "x.jpg", "here", "-o", "maps")
    assert result.exit_code == 1
    assert [record["status"] for record in records(Path("maps"))].count("done") == 1
    assert result.stderr.count("not a regular file") == 2

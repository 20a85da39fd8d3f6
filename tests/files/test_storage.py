"""Photos on a server that speaks S3, and in tar files, are photos like others."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import webdataset
from PIL import Image
from runs import invoke, photos, records, tree, until


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The name of an empty bucket of a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in settings.items():
            patch.setenv(name, value)

        def answers() -> bool:
            with socket.socket() as attempt:
                return attempt.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(answers)
            fsspec.filesystem("s3").mkdir("photos")
            yield "photos"
        finally:
            server.kill()


def upload(local: Path, url: str) -> None:
    fsspec.filesystem("s3").put(str(local), url, recursive=True)


def shard(path: Path, count: int) -> None:
    """A tar file of samples as training reads them: images, and what is known about them."""
    generator = np.random.default_rng(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(count):
            pixels = generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            writer.write({"__key__": f"{number:04}", "png": pixels, "cls": number, "json": {"of": path.name}})


def by_name(directory: Path) -> dict[str, bytes]:
    return {Path(name).name: content for name, content in tree(directory).items() if content}


def test_a_bucket_gives_what_a_directory_gives(working_directory: Path, bucket: str) -> None:
    photos(Path("here"), 6)
    upload(Path("here"), f"s3://{bucket}/there")
    fsspec.filesystem("s3").pipe(f"{bucket}/there/notes.txt", b"no image")
    assert invoke("here", "-o", "a").exit_code == 0
    result = invoke(f"s3://{bucket}/there", "-o", "b", "--skip-existing")
    assert result.exit_code == 0
    assert "6 done; 1 other file skipped" in result.stderr
    assert by_name(Path("a")) == by_name(Path("b"))
    assert {record["input"] for record in records(Path("b"))} == {
        f"s3://{bucket}/there/{i % 3}/{i:04}.jpg" for i in range(6)
    }
    assert all(path.startswith(f"b/s3:/{bucket}/there/") for path in result.stdout.splitlines())

    # another object in the place of one, and only that is worked on
    Image.new("RGB", (50, 40), "red").save("red.jpg")
    upload(Path("red.jpg"), f"s3://{bucket}/there/0/0003.jpg")
    fsspec.filesystem("s3").invalidate_cache()
    again = invoke(f"s3://{bucket}/there", "-o", "b", "--skip-existing")
    assert "6 images: 1 done, 5 up to date" in again.stderr


def test_patterns_fit_below_the_directory(working_directory: Path, bucket: str) -> None:
    photos(Path("here"), 6)
    upload(Path("here"), f"s3://{bucket}/deep/photos")
    result = invoke(f"s3://{bucket}/deep", "--include", "photos/1/*.jpg", "--dry-run")
    assert result.stdout.split() == [f"s3://{bucket}/deep/photos/1/{i:04}.jpg" for i in (1, 4)]
    assert not invoke(f"s3://{bucket}/deep", "--include", "deep", "--dry-run").stdout


def test_what_is_not_there_is_a_failure_of_that_image(working_directory: Path, bucket: str) -> None:
    photos(Path("here"), 1)
    upload(Path("here/0/0000.jpg"), f"s3://{bucket}/one.jpg")
    result = invoke(f"s3://{bucket}/one.jpg", f"s3://{bucket}/gone.jpg", "s3://nowhere/photos", "-o", "maps")
    assert result.exit_code == 1
    failed = [record for record in records(Path("maps")) if record["status"] == "failed"]
    assert all(record["error"].startswith("it cannot be found (") for record in failed)
    assert [record["input"] for record in failed] == [f"s3://{bucket}/gone.jpg", "s3://nowhere/photos"]
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "why"), [("nosuch://a/b.jpg", "not known: nosuch"), ("oss://a/b.jpg", "[Ii]nstall ossfs")]
)
def test_a_url_that_nothing_here_can_read(working_directory: Path, url: str, why: str) -> None:
    result = invoke(url, "-o", "maps")
    assert result.exit_code == 2
    assert re.fullmatch(rf"Error: {url[: url.index(':')]}:// cannot be read: .*{why}.*\n", result.stderr)


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
    assert {name.removeprefix("shards/"): content for name, content in tree(Path("b/shards")).items()} == tree(
        Path("a/unpacked")
    )
    assert {record["input"] for record in records(Path("b"))} >= {"shards/a-000.tar/0002.png"}
    assert "5 images: 5 up to date" in invoke("shards", "-o", "b", "--raw", "--skip-existing").stderr
    shard(Path("shards/a-001.tar"), 4)
    assert "7 images: 4 done, 3 up to date" in invoke("shards", "-o", "b", "--raw", "--skip-existing").stderr


def test_a_shard_on_a_server(working_directory: Path, bucket: str) -> None:
    shard(Path("s/a.tar"), 4)
    upload(Path("s/a.tar"), f"s3://{bucket}/a.tar")
    assert invoke("s/a.tar", "-o", "a").exit_code == 0
    result = invoke(f"s3://{bucket}/a.tar", "-o", "b")
    assert result.exit_code == 0
    assert len(by_name(Path("a"))) == 4
    assert by_name(Path("a")) == by_name(Path("b"))


def test_a_damaged_shard_loses_only_what_is_behind_the_damage(working_directory: Path) -> None:
    shard(Path("a.tar"), 3)
    with tarfile.open("a.tar") as tar:
        last = tar.getmember("0002.png")
    os.truncate("a.tar", last.offset_data + last.size // 2)
    result = invoke("a.tar", "-o", "maps")
    assert result.exit_code == 1
    failed = {record["input"]: record["error"] for record in records(Path("maps")) if record["status"] == "failed"}
    assert {record["input"] for record in records(Path("maps")) if record["status"] == "done"} == {
        "a.tar/0000.png",
        "a.tar/0001.png",
    }
    assert set(failed) == {"a.tar/0002.png", "a.tar"}
    assert failed["a.tar"] == "it cannot be read to its end as an uncompressed tar file (unexpected end of data)"


def test_a_compressed_shard_is_told_from_a_broken_photo(working_directory: Path) -> None:
    shard(Path("a.tar"), 1)
    with tarfile.open("a.tgz", "w:gz") as packed:
        packed.add("a.tar")
    result = invoke("a.tgz", "-o", "maps")
    assert result.exit_code == 1
    assert result.stderr.startswith("a.tgz: it is a compressed tar file")


def test_names_that_climb_out_stay_in(working_directory: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (30, 30), "red").save(picture, "png")
    with tarfile.open("evil.tar", "w") as tar:
        for name in ("../../up.png", "/etc/root.png", "a/../side.png"):
            member = tarfile.TarInfo(name)
            member.size = len(picture.getvalue())
            tar.addfile(member, io.BytesIO(picture.getvalue()))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    result = invoke("evil.tar", "-o", "maps")
    assert result.exit_code == 0
    assert {record["place"] for record in records(Path("maps"))} == {
        "evil.tar/up.png",
        "evil.tar/etc/root.png",
        "evil.tar/a/side.png",
    }
    assert {path.parts[0] for path in Path().rglob("*.png") if path.is_file()} == {"maps"}

"""Photos on a server that speaks S3, and in tar files, are photos like others."""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import fsspec
import numpy as np
import pytest
import webdataset
from PIL import Image
from runs import invoke, photos, records, tree, until

from ebcli.errors import ImageError
from ebcli.files.images import decode
from ebcli.files.remote import RemoteOptions
from ebcli.files.sources import Source, find


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
    type(fsspec.filesystem("s3")).clear_instance_cache()
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


@pytest.mark.parametrize("kind", ["dead", "silent", "slow"])
def test_a_server_of_objects_that_stalls_is_given_up(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    stop = threading.Event()
    photos(Path("here"), 1)

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            method = connection.recv(4)
            if kind == "slow":
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n")
            while not stop.wait(0.05) and method != b"HEAD":
                connection.sendall(b"x" * (kind == "slow"))

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()

        settings = {"ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}", "DEFAULT_REGION": "us-east-1"}
        for name, value in {**settings, "ACCESS_KEY_ID": "nobody", "SECRET_ACCESS_KEY": "nothing"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setattr("ebcli.files.storage.SLOWEST", 2)  # not in workers
        if kind == "dead":
            listener.close()
        else:
            threading.Thread(target=serve, daemon=True).start()
        start = time.monotonic()
        options = ["--timeout", "0.2", "--retries", "0", "--workers", "1"]
        result = invoke("s3://stalled/a.png", "here", "-o", "maps", *options)
        stop.set()
    assert time.monotonic() - start < (20 if kind == "slow" else 8)
    assert result.exit_code == 1
    assert [record["status"] for record in records(Path("maps"))].count("done") == 1
    assert re.search(
        {"dead": "connect", "silent": "[Tt]imeout|connect", "slow": "did not send it within 4 s"}[kind], result.stderr
    )


def test_results_are_not_written_to_urls(working_directory: Path) -> None:
    photos(Path("here"), 1)
    for output in ("s3://bucket/out", "https://host/a.png", "file:///tmp/out"):
        result = invoke("here/0/0000.jpg", "-o", output)
        assert result.exit_code == 2
        assert "it is a URL: name a local directory, and copy it there" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["here"]


def test_objects_of_awkward_names_are_read_or_named(working_directory: Path, bucket: str) -> None:
    photos(Path("here"), 1)
    system = fsspec.filesystem("s3")
    for name in ("a.jpg", "p//x.jpg", "a::b.jpg", "../up.jpg"):
        system.call_s3("put_object", Bucket=bucket, Key=f"odd/{name}", Body=Path("here/0/0000.jpg").read_bytes())
    system.invalidate_cache()
    result = invoke(f"s3://{bucket}/odd", f"s3://{bucket}/odd/p//x.jpg", "s3://me:s3cr3t@b/a.png", "-o", "maps")
    assert result.exit_code == 1
    found = {record["input"]: record["error"] for record in records(Path("maps"))}
    assert {name.removeprefix(f"s3://{bucket}/odd/") for name, error in found.items() if error is None} == {
        "a.jpg",
        "p//x.jpg",
    }
    assert "without '::' in them" in found[f"s3://{bucket}/odd/a::b.jpg"]
    assert "without '..' in them" in found[f"s3://{bucket}/odd/../up.jpg"]
    assert "takes no password" in found["s3://b/a.png"]
    assert {path.parts[0] for path in Path().rglob("*.jpg") if path.is_file()} == {"here", "maps"}
    assert "s3cr3t" not in result.output


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://a/b.jpg",
        "zip://x.jpg::a.zip",
        "reference://a.jpg",
        "s3://a/b.jpg::file:///etc/passwd",
        "simplecache::s3://a/b.jpg",
        "github://a:b@main/c.jpg",
    ],
)
def test_other_urls_fail_alone(working_directory: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    photos(Path("here"), 1)
    monkeypatch.setattr("socket.getaddrinfo", pytest.fail)
    result = invoke(url, "here", "-o", "maps")
    assert result.exit_code == 1
    done, failed = sorted(records(Path("maps")), key=lambda record: record["status"])
    assert done["input"] == "here/0/0000.jpg"
    assert failed["error"].startswith(("only URLs of http, https, s3, gs, hf and file", "No such file", "the conn"))


def test_a_missing_package_is_one_clear_error(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    result = invoke("gs://a/b.jpg", "-o", "maps")
    assert result.exit_code == 2
    assert re.fullmatch(r"Error: gs:// cannot be read: .*gcsfs.*\n", result.stderr)


def test_memory_urls_serve_tests(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.files.storage.PROTOCOLS", ["memory"])
    photos(Path("here"), 1)
    fsspec.filesystem("memory").pipe("/dir/a.jpg", Path("here/0/0000.jpg").read_bytes())
    assert invoke("memory://dir", "-o", "maps").exit_code == 0
    limited = Source(Path("memory://dir/a.jpg"), remote=RemoteOptions(max_bytes=100))
    with pytest.raises(ImageError, match="larger than 100 bytes"):
        limited.opened()


def test_a_file_url_is_a_local_path(working_directory: Path) -> None:
    photos(Path("a dir"), 1)
    url = (working_directory / "a dir/0/0000.jpg").as_uri()
    assert "%20" in url
    result = invoke(url, "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert records(Path("maps"))[0]["input"] == str(working_directory / "a dir/0/0000.jpg")


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
        str(source.path): source.problem or decode(source.opened()[1]).getpixel((0, 0))  # type: ignore[misc]
        for source in found
    }


def test_names_that_climb_out_of_a_tar_file_are_skipped_with_a_word(working_directory: Path) -> None:
    pack("a.tar", ("x.png", "red"), ("../../x.png", "blue"), ("/etc/root.png", "red"), ("a/../side.png", "blue"))
    with tarfile.open("a.tar", "a") as tar:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert colors(find([Path("a.tar")])) == {
        "a.tar/x.png": (255, 0, 0),
        "a.tar/etc/root.png": (255, 0, 0),
        "a.tar": "it has 2 files with .. in their names, which were skipped",
    }
    assert invoke("a.tar", "-o", "maps").exit_code == 1
    assert {path.parts[0] for path in Path().rglob("*.png") if path.is_file()} == {"maps"}


def test_tar_files_give_what_they_would_give_extracted(working_directory: Path) -> None:
    files = [("a.png", "red"), ("b.png", "=a.png"), ("a.png", "blue"), ("c.png", "=a.png"), ("d.png", "=gone.png")]
    pack("a.tar", *files)
    Path("extracted").mkdir()
    subprocess.run(["tar", "-xf", "a.tar", "-C", "extracted"], stderr=subprocess.DEVNULL, check=False)
    extracted = {f"a.tar/{path.name}": decode(path).getpixel((0, 0)) for path in Path("extracted").iterdir()}
    assert colors(find([Path("a.tar")])) == extracted


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.DIRTYPE])
@pytest.mark.parametrize("size", [2**63 - 1, 2**60, 2**40, -512, -(2**63)])
def test_a_tar_header_with_an_impossible_size_fails_alone(working_directory: Path, kind: bytes, size: int) -> None:
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
    found = colors([source for source in find([Path("a.tar"), Path("here")]) if source.path.name != "b.png"])
    assert found["a.tar/a.png"] == (255, 0, 0)
    assert "here/0/0000.jpg" in found
    assert str(found.get("a.tar", "it cannot be read to its end")).startswith("it cannot be read to its end")
    assert "a.tar" in found or kind == tarfile.DIRTYPE


def test_named_pipes_are_not_opened(working_directory: Path) -> None:
    for name in ("x.tar", "x.jpg"):
        os.mkfifo(name)
    photos(Path("here"), 1)
    result = invoke("x.tar", "x.jpg", "here", "-o", "maps")
    assert result.exit_code == 1
    assert [record["status"] for record in records(Path("maps"))].count("done") == 1
    assert result.stderr.count("not a regular file") == 2

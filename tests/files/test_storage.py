"""Photos on a server that speaks S3 are photos like others."""

import contextlib
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer
from PIL import Image
from runs import invoke, photos, records, tree
from shards import shard

from ebcli.errors import ImageError
from ebcli.files.paths import RemoteOptions
from ebcli.files.sources import Source


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The name of an empty bucket of a server of its own."""
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("photos")
        yield "photos"
    server.stop()


def upload(local: Path, url: str) -> None:
    fsspec.filesystem("s3").put(str(local), url, recursive=True)


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
    assert all(re.fullmatch(r"b/\d/\d{4}\.jpg\.[^/]+", path) for path in result.stdout.splitlines())

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


@pytest.mark.release
@pytest.mark.parametrize("kind", ["slow", "dead", "silent"])
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
            while not stop.wait(0.02) and method != b"HEAD":
                connection.sendall(b"x" * (kind == "slow"))

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()

        settings = {
            "ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "DEFAULT_REGION": "us-east-1",
        }
        for name, value in {**settings, "ACCESS_KEY_ID": "nobody", "SECRET_ACCESS_KEY": "nothing"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setattr("ebcli.files.storage.SLOWEST", 2)  # not in workers
        if kind == "dead":
            listener.close()
        else:
            threading.Thread(target=serve, daemon=True).start()
        result = invoke(
            "s3://stalled/a.png", "here", "-o", "maps", "--workers", "1", timeout="0.15", retries="0"
        )
        stop.set()
    assert result.exit_code == 1
    assert [record["status"] for record in records(Path("maps"))].count("done") == 1
    assert re.search(
        r"s3://stalled/a\.png: "
        + ("the server did not send it within 3 s" if kind == "slow" else "it cannot be read: "),
        result.stderr,
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
    for name in ("a.jpg", "p//x.jpg", "p/./x.jpg", "a::b.jpg", "../up.jpg"):
        system.call_s3(
            "put_object", Bucket=bucket, Key=f"odd/{name}", Body=Path("here/0/0000.jpg").read_bytes()
        )
    system.invalidate_cache()
    result = invoke(
        f"s3://{bucket}/odd", f"s3://{bucket}/odd/p//x.jpg", "s3://me:s3cr3t@b/a.png", "-o", "maps"
    )
    assert result.exit_code == 1
    found = {record["input"]: record["error"] for record in records(Path("maps"))}
    assert {name.removeprefix(f"s3://{bucket}/odd/") for name, error in found.items() if error is None} == {
        "a.jpg",
        "p//x.jpg",
        "p/./x.jpg",
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
    assert failed["error"].startswith(
        ("only URLs of http, https, s3, gs, hf and file", "No such file", "the conn")
    )


def test_a_missing_package_is_one_clear_error(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    result = invoke("gs://a/b.jpg", "-o", "maps")
    assert result.exit_code == 2
    assert result.stderr == "Error: this needs the package gcsfs: pip install 'eb-saliency[remote]'\n"


def test_memory_urls_serve_tests(working_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.files.storage._PACKAGES", {"memory": "fsspec"})
    photos(Path("here"), 1)
    fsspec.filesystem("memory").pipe("/dir/a.jpg", Path("here/0/0000.jpg").read_bytes())
    assert invoke("memory://dir", "-o", "maps").exit_code == 0
    limited = Source(Path("memory://dir/a.jpg"), remote=RemoteOptions(max_bytes=100))
    with pytest.raises(ImageError, match="larger than 100 bytes"):
        limited.open_content()


def test_a_file_url_is_a_local_path(working_directory: Path) -> None:
    photos(Path("a dir"), 1)
    url = (working_directory / "a dir/0/0000.jpg").as_uri()
    assert "%20" in url
    result = invoke(url, "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert records(Path("maps"))[0]["input"] == str(working_directory / "a dir/0/0000.jpg")


def test_a_shard_on_a_server(working_directory: Path, bucket: str) -> None:
    shard(Path("s/a.tar"), 4)
    upload(Path("s/a.tar"), f"s3://{bucket}/a.tar")
    assert invoke("s/a.tar", "-o", "a").exit_code == 0
    result = invoke(f"s3://{bucket}/a.tar", "-o", "b")
    assert result.exit_code == 0
    assert len(by_name(Path("a"))) == 4
    assert by_name(Path("a")) == by_name(Path("b"))

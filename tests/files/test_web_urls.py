"""URLs: what is asked of a server, and what is kept of secrets in them."""

from __future__ import annotations

import base64
import io
import os
import re
import tarfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from runs import invoke, records
from web_server import Server, photo

from ebcli.files.paths import path_of, url_of, without_secrets
from ebcli.files.sources import find_sources


def all_written(directory: Path) -> bytes:
    """Every name and every byte below a directory."""
    return b"".join(
        os.fsencode(path) + (path.read_bytes() if path.is_file() else b"") for path in directory.rglob("*")
    )


@pytest.mark.parametrize(
    "signature",
    [
        "X-Amz-Credential=id%2Fs3&X-Amz-Date={0}&X-Amz-Expires=60&X-Amz-Signature=s3cr3t{0}",
        "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Date={0}&X-Goog-Signature=s3cr3t{0}",
        "sv=2022-11-02&sr=b&sp=r&se={0}&skoid=s3cr3t&sig=s3cr3t{0}%2B",
        "Expires={0}&Signature=s3cr3t{0}&Key-Pair-Id=s3cr3t",
        "AWSAccessKeyId=s3cr3t&Expires={0}&Signature=s3cr3t{0}",
    ],
)
def test_signatures_are_used_and_kept_nowhere(
    working_directory: Path, server: Server, signature: str
) -> None:
    def signed(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == "HEAD":  # signed for GET
            handler.send_error(403)
        else:
            server.send(handler, photo())

    wanted = ["--report", "--panel", "--raw"]
    for now in ("1", "2"):
        server.answers[f"/p/a.jpg?{signature.format(now)}"] = signed
    result = invoke(f"{server.url}/p/a.jpg?{signature.format(1)}", "-o", "maps", *wanted)
    assert result.exit_code == 0, result.stderr
    assert records(Path("maps"))[0]["input"] == f"{server.url}/p/a.jpg"
    again = invoke(f"{server.url}/p/a.jpg?{signature.format(2)}", "-o", "maps", *wanted, "--skip-existing")
    assert "1 up to date" in again.stderr, again.stderr
    failed = invoke(f"{server.url}/p/a.jpg?{signature.format(3)}", f"{server.url}/p/a.jpg?bad", "-o", "maps")
    assert failed.exit_code == 1
    empty = invoke(f"{server.url}/p/a?{signature.format(3)}", "--exclude", "*")
    everything = (
        all_written(Path("maps")) + f"{result} {result.output} {again.output} {failed.output}".encode()
    )
    assert not re.search(rb"s3cr3t|X-Amz|Expires=|sig=", everything + empty.output.encode())


def test_user_names_and_passwords_are_used_and_kept_nowhere(working_directory: Path, server: Server) -> None:
    given: dict[str, str | None] = {}

    def protected(handler: BaseHTTPRequestHandler) -> None:
        given[handler.path] = handler.headers.get("Authorization")
        if handler.path == "/away.png":
            handler.send_response(302)
            handler.send_header("Location", server.url.replace("127.0.0.1", "localhost") + "/c.png")
            handler.end_headers()
        elif given[handler.path] is None and handler.path != "/c.png":
            handler.send_error(401)
        else:
            server.send(
                handler, b"<a href=a.png>a</a> <a href=c.tar>" if handler.path == "/dir/" else photo()
            )

    server.answers = dict.fromkeys(("/dir/", "/dir/a.png", "/b.png", "/away.png", "/c.png"), protected)
    with tarfile.open("c.tar", "w") as tar:
        member = tarfile.TarInfo("in.png")
        member.size = len(photo())
        tar.addfile(member, io.BytesIO(photo()))
    server.answers["/dir/c.tar"] = Path("c.tar").read_bytes()
    host = server.url.replace("//", "//visitor:p%40ss@")
    result = invoke(
        f"{host}/dir", f"{host}/b.png", f"{host}/away.png", f"{host}/gone.png", "-o", "maps", "--report"
    )
    assert result.exit_code == 1
    done = {record["input"] for record in records(Path("maps")) if record["status"] == "done"}
    assert done == {f"{server.url}/{name}" for name in ("dir/a.png", "dir/c.tar/in.png", "b.png", "away.png")}
    basic = "Basic " + base64.b64encode(b"visitor:p@ss").decode()
    assert given == {"/dir/": basic, "/dir/a.png": basic, "/b.png": basic, "/away.png": basic, "/c.png": None}
    none = invoke(f"{host}/dir", "--exclude", "*")
    assert "no images found" in none.stderr
    everything = all_written(Path("maps")) + (result.output + none.output).encode()
    assert not re.search(rb"p%40ss|p@ss|visitor", everything)


def test_other_parameters_tell_files_apart(working_directory: Path, server: Server) -> None:
    server.answers = {
        f"/p.php?id={i}&key={key}&u=a%2F%2Fb": photo() for i in (1, 2) for key in ("cat", "dog")
    }
    result = invoke(*(f"{server.url}{path.replace('%2F', '/')}" for path in server.answers), "-o", "maps")
    assert result.exit_code == 0, result.stderr
    inputs = {record["input"] for record in records(Path("maps"))}
    assert len(inputs) == 4
    assert all(re.fullmatch(r".*/p\.php\?id=[12]&key=~[0-9a-f]{16}&u=a%2F%2Fb", one) for one in inputs)


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("http://host?token=s3cr3t", r"http://host\?token=~\w{16}"),
        ("https://a:s3cr3t@host", "https://host"),
        ("https://s3cr3t@host/dir/", "https://host/dir"),
        ("https://host/@me/a.jpg?w=2&h=3", r"https://host/@me/a\.jpg\?w=2&h=3"),
        ("s3://s3cr3t:s3cr3t@bucket/what?.png", r"s3://bucket/what\?\.png"),
        ("file:///a@b/c.png?key=d", r"file://a@b/c\.png\?key=d"),
        ("hf://datasets/me/photos@main/a.png", "hf://datasets/me/photos@main/a.png"),
    ],
)
def test_what_is_kept_of_a_url(name: str, public: str) -> None:
    path, options = without_secrets(path_of(name))
    assert re.fullmatch(public, str(url_of(path)))
    assert "s3cr3t" not in repr(options)
    assert (without_secrets(path)[0] == path) != ("token=" in name)


def test_slashes_in_succession_are_kept(working_directory: Path, server: Server) -> None:
    server.answers = {"/p//x.png": photo(), "/q/http://y.png": photo()}
    result = invoke(*(server.url + path for path in server.answers), "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert [record["input"] for record in records(Path("maps"))] == [
        server.url + path for path in server.answers
    ]


def test_patterns_hold_for_a_named_url(server: Server) -> None:
    urls = [path_of(f"{server.url}/{name}") for name in ("photos/a.jpg", "photos/b.png", "thumbs/c.jpg")]
    found = find_sources(urls, include=["*.jpg"], exclude=["thumbs"])
    assert [source.name for source in found] == [f"{server.url}/photos/a.jpg"]
    assert not find_sources(urls[:1], exclude=["photos"])

"""Directories and tar files on web servers."""

import io
import tarfile
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from runs import invoke, records, tree
from web_server import Server, photo

from ebcli.files import web
from ebcli.files.sources import find_sources


def test_links_of_a_listing_that_lead_out_of_it_are_not_followed(
    working_directory: Path, server: Server
) -> None:
    links = [
        "b.png",
        "sub/",
        "../",
        "../../../up.png",
        "/root.png",
        "%2e%2e/dots.png",
        "sub/../../x.png",
        "?C=N",
    ]
    links += [
        "http://example.org/other.png",
        "file:///etc/passwd",
        "./",
        "b.png#again",
        "sub/..%2f..%2fup.png",
    ]
    server.answers["/dir/"] = "".join(f'<A class=x href="{link}">x</A>' for link in links).encode()
    server.answers["/dir/sub/"] = b"<a href='c%20d.png'>c</a><a href='../'>up</a><a href='/dir/'>again</a>"
    for name in ("/dir/b.png", "/dir/sub/c%20d.png", "/up.png", "/root.png", "/dots.png", "/x.png"):
        server.answers[name] = photo()
    result = invoke(f"{server.url}/dir", "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert [record["input"] for record in records(Path("maps"))] == [
        f"{server.url}/dir/b.png",
        f"{server.url}/dir/sub/c%20d.png",
    ]
    written = [name for name in tree(Path("maps")) if name.endswith(".png")]
    assert [name.partition(".png")[0] for name in written] == ["b", "sub/c%2520d"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "page",
    [
        *(
            "<a ",
            "<",
            "<a href=",
            "<a href='",
            "<!--",
            "<a x x=",
            "</a",
            "<a\t/",
            "<![CDATA[",
            "<?",
            "&#",
            "&" * 100,
        ),
        *(
            "<a " + " " * 500,
            "<a " + "x='\"" * 2000,
            "<a href='&#" + "9" * 4000 + ";'>",
            "<a href='http://['>",
        ),
        *("<script>", "<textarea>", "<a href=javascript:>", "<!doctype "),
    ],
)
def test_any_listing_is_read_in_no_time(server: Server, page: str) -> None:
    """Backtracking would take hours."""
    server.answers["/dir/"] = f"<a href='first.png'>{page * (300_000 // len(page))}".encode()
    found = [source.name for source in find_sources([Path(f"{server.url}/dir")])]
    assert f"{server.url}/dir/first.png" in found


def test_links_are_found_however_they_are_written(server: Server) -> None:
    server.answers["/dir/"] = b"""<A HREF=1.png> <a class=">" href='2.png' >2</a ><a
        title = x href = "a&amp;b%20&#99;.png"> <area href=no.png> <a name=no.png> text <a/href=3.png>"""
    found = [source.name.rpartition("/")[2] for source in find_sources([Path(f"{server.url}/dir")])]
    assert found == ["1.png", "2.png", "3.png", "a&b%20c.png"]


def test_listings_without_end_are_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_MOST_LISTINGS", 20)
    server.answers["/dir/"] = b"<a href='deeper/'>x</a>"
    for depth in range(1, 40):
        server.answers["/dir/" + "deeper/" * depth] = b"<a href='deeper/'>x</a>"
    (source,) = find_sources([Path(f"{server.url}/dir")])
    assert source.name == f"{server.url}/dir"
    assert source.problem == "it has more than 20 directories: name some of them instead"
    assert sum(server.requests.values()) <= 21


@pytest.mark.release
def test_slow_listings_have_one_deadline_and_what_they_named_is_done(
    working_directory: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "SLOWEST", 1)

    def slowly(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.2)
        server.send(handler, b"<a href='deeper/'>x</a> <a href='a.png'>x</a>")

    for depth in range(60):
        server.answers["/dir/" + "deeper/" * depth] = slowly
        server.answers["/dir/" + "deeper/" * depth + "a.png"] = photo()
    result = invoke(f"{server.url}/dir", "-o", "maps", "--exclude", "*deeper/*", timeout="3", retries="0")
    assert result.exit_code == 1
    assert (
        f"{server.url}/dir: listing its directories took longer than 3 s: raise EB_SALIENCY_TIMEOUT"
        in result.stderr
    )
    assert f"{server.url}/dir/a.png" in [record["input"] for record in records(Path("maps"))]


def test_one_listing_that_fails_does_not_take_the_others_with_it(
    working_directory: Path, server: Server
) -> None:
    server.answers["/dir/"] = b"<a href='gone/'>x</a> <a href='a.png'>x</a>"
    server.answers["/dir/a.png"] = photo()
    result = invoke(f"{server.url}/dir", "-o", "maps")
    assert result.exit_code == 1
    assert f"{server.url}/dir: 'gone/' cannot be listed: it cannot be found" in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_a_tar_file_on_a_server_is_read_in_parts(working_directory: Path, server: Server) -> None:
    with tarfile.open("a.tar", "w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(photo())
            tar.addfile(member, io.BytesIO(photo()))
    server.answers["/a.tar"] = Path("a.tar").read_bytes()
    result = invoke(f"{server.url}/a.tar", "-o", "maps")
    assert result.exit_code == 0, result.stderr
    assert len(records(Path("maps"))) == 3

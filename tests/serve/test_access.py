"""Who may ask, what can be read, and what may be sent."""

import html
import io
import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from asking import HERE, HERE_ONLY, TEN, page, told, until_loaded
from PIL import Image
from starlette.testclient import TestClient

from ebcli.errors import ConfigurationError
from ebcli.files.paths import RemoteOptions
from ebcli.serve.access import Guard
from ebcli.serve.photos import Photos


def picture(kind: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(file, kind)
    return file.getvalue()


def upload(client: TestClient, content: bytes, name: str = "cat.png", **headers: str) -> httpx.Response:
    return client.post("/photos", params={"name": name}, content=content, headers=headers)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8722", 200),
        ("localhost:8722", 200),
        ("LOCALHOST", 200),
        ("[::1]:8722", 200),
        ("127.0.0.2", 200),
        ("evil.example:8722", 400),
        ("127.0.0.1.evil.example", 400),
        ("192.168.0.7:8722", 200),
        ("[::1", 400),
        ("", 400),
    ],
)
def test_other_names_are_refused(client: TestClient, host: str, status: int) -> None:
    for address in ("/", "/status", f"/photo?photo={TEN[0]}", "/colors"):
        answer = client.get(address, headers={"host": host})
        assert answer.status_code == status
        assert status == 200 or "does not answer to that name" in answer.json()["problem"]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
    ],
)
def test_other_sites_may_only_link_to_the_page(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/", headers=headers).status_code == 200
    for address in (
        "/status",
        f"/photo?photo={TEN[0]}",
        f"/maps?photo={TEN[0]}&target=1",
        f"/picture?photo={TEN[0]}&target=1",
    ):
        assert client.get(address, headers=headers).status_code == 403
    assert upload(client, picture(), **headers).status_code == 403
    assert client.post("/", headers=headers).status_code == 403
    assert len(client.get("/status").json()["photos"]) == 10


def test_the_page_itself_may_ask(client: TestClient) -> None:
    own = {"sec-fetch-site": "same-origin", "origin": HERE}
    assert client.get("/status", headers=own).status_code == 200
    assert upload(client, picture(), **own).status_code == 200


def test_every_answer_has_the_policy(client: TestClient) -> None:
    for address in (
        "/",
        "/status",
        f"/photo?photo={TEN[0]}",
        "/photo?photo=x",
        "/nothing",
        "/colors",
        "/maps",
    ):
        answer = client.get(address)
        headers, policy = answer.headers, answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        if address == "/":  # the page has the rest
            (policy,) = re.findall('<meta http-equiv="Content-Security-Policy" content="(.*?)">', answer.text)
            (script,) = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)
            digest = b64encode(sha256(script.encode()).digest()).decode()
            assert html.unescape(policy).count(f"script-src 'sha256-{digest}';") == 1
        assert html.unescape(policy).startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not headers.get("access-control-allow-origin")
    assert client.get("/", headers={"host": "evil.example"}).headers["content-security-policy"]


@pytest.fixture
def public(ten_photos: Path) -> Iterator[TestClient]:
    app = Guard(page().app, frozenset({"machine"}), "s3cret")
    with TestClient(app, "http://192.168.0.7:8722") as client:
        yield client


def test_all_but_the_page_needs_the_token(public: TestClient) -> None:
    refused = "this server needs its token: open the address that the terminal shows"
    headers = ("", "Bearer", "Bearer wrong", "Bearer s3crets", "Basic s3cret", "s3cret", "Bearer s3cret\xe9")
    for address in ("/status", f"/photo?photo={TEN[0]}", "/colors", "/nothing", "/status?token=s3cret"):
        for header in headers:
            answer = public.get(address, headers={"authorization": header.encode("latin-1")})
            assert (answer.status_code, answer.json()["problem"]) == (401, refused), (address, header)
        cookies = {"cookie": "eb-saliency-8722=s3cret; token=s3cret; authorization=Bearer s3cret"}
        assert public.get(address, headers=cookies).status_code == 401
    for address in ("/photos", "/frame", "/"):
        assert public.post(address, content=picture()).status_code == 401
    for address in ("/", "/?photo=1"):
        page = public.get(address)
        assert page.status_code == 200
        assert "s3cret" not in page.text
        assert not [name for name in page.headers if name.endswith("cookie")]
    public.headers["authorization"] = "Bearer s3cret"
    assert until_loaded(public)["photos"]
    assert public.get("/status", headers={"host": "machine:8722"}).status_code == 200
    assert public.get("/status", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/photo/photos%2F0%2F0000.jpg", 404),
        ("/photo?photo=photos/0", 400),
        ("/photo?photo=../photos/0/0000.jpg", 400),
        ("/photo?photo=..%2F..%2Fetc%2Fpasswd", 400),
        ("/photo?photo=10", 400),
        ("/photo?photo=", 400),
        ("/photo?photo=photos/0/0000.jpg%00", 400),
        ("/..%2F__init__.py", 404),
        ("/%2Fetc%2Fpasswd", 404),
        ("/gallery.html", 404),
        ("/../app.py", 404),
    ],
)
def test_nothing_but_the_photos_can_be_read(client: TestClient, path: str, status: int) -> None:
    assert client.get(path).status_code == status


def test_an_upload_is_a_photo_like_others(client: TestClient) -> None:
    key = upload(client, picture("JPEG"), "<b>ca\u202et.jpg").json()["key"]
    assert client.get("/status").json()["photos"][key] == "<b>ca\ufffdt.jpg"
    shown = Image.open(io.BytesIO(client.get(f"/photo?photo={key}").content))
    assert shown.size == (40, 30)
    assert client.get("/maps", params={"photo": key, "target": "1"}).status_code == 200
    assert client.get("/picture", params={"photo": key, "target": "1"}).content.startswith(b"\x89PNG")


def bomb() -> bytes:
    """A PNG that says that it has 30,000 x 30,000 pixels."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


HOSTILE = {
    "nothing": b"",
    "text": b"hello",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "html": b"<!doctype html><script>alert(1)</script>",
    "a PNG of 900 million pixels": bomb(),
    "truncated": picture("JPEG", (400, 300))[:700],
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_upload_is_one_sentence(client: TestClient, kind: str, ten_photos: Path) -> None:
    answer = upload(client, HOSTILE[kind])
    assert answer.status_code == 400
    problem = answer.json()["problem"]
    assert problem
    assert "\n" not in problem
    assert set(ten_photos.iterdir()) == {ten_photos / "photos"}
    assert len(client.get("/status").json()["photos"]) == 10


def test_a_photo_that_is_replaced_is_shown_as_it_is_now(client: TestClient, ten_photos: Path) -> None:
    first = sorted((ten_photos / "photos").rglob("*.jpg"))[0]
    names = client.get("/status").json()["photos"]
    (key,) = (key for key, name in names.items() if first.samefile(name))
    asked = {"photo": key, "target": "1"}

    def answers() -> list[bytes]:
        told = [
            client.get(f"/photo?photo={key}"),
            client.get("/maps", params=asked),
            client.get("/picture", params=asked),
        ]
        return [one.content for one in told]

    before = answers()
    first.write_bytes(picture("JPEG", (64, 48)))
    after = answers()
    assert Image.open(io.BytesIO(after[0])).size == (64, 48)
    assert all(one != other for one, other in zip(before, after, strict=True))
    first.unlink()
    for address in (f"/photo?photo={key}", f"/maps?photo={key}&target=1", f"/picture?photo={key}&target=1"):
        answer = client.get(address)
        assert (answer.status_code, answer.json()["problem"]) == (400, "No such file or directory")
    assert upload(client, picture()).status_code == 200


def test_what_nobody_thought_of_is_a_fixed_sentence(
    opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"in {Path.cwd()}")

    client = opened()
    for name, address in (
        ("ebcli.serve.photos.downscale", f"/photo?photo={TEN[0]}"),
        ("ebcli.serve.app.encode_maps", f"/maps?photo={TEN[0]}"),
    ):
        monkeypatch.setattr(name, fail)
        with TestClient(client.app, HERE, raise_server_exceptions=False) as patient:
            answer = patient.get(address)
        assert answer.status_code >= 400
        assert answer.json() == {"problem": "this failed: the terminal of eb-saliency serve says why"}
    assert all(str(Path.cwd()) in one for one in told)
    assert len(told) == 2


def test_too_many_connections_are_one_sentence(ten_photos: Path) -> None:
    guard = Guard(page().app, frozenset({"localhost"}), "s3cret", connections=range(501))
    answer = TestClient(guard, HERE).get("/")
    assert (answer.status_code, answer.json()["problem"]) == (
        503,
        "too many ask at once: try again in a moment",
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    [
        "../../evil.png",
        "/etc/passwd",
        "\u1234" * 200,
        "..\\evil.png",
        "..",
        ".",
        "",
        "a" * 5000,
        "\0",
        "~",
        "x\n.png",
    ],
)
def test_names_of_uploads_lead_nowhere(client: TestClient, name: str, ten_photos: Path) -> None:
    before = {*ten_photos.rglob("*")}
    key = upload(client, picture(), name).json()["key"]
    assert {*ten_photos.rglob("*")} == before
    assert client.get("/maps", params={"photo": key, "target": "1"}).status_code == 200


def test_too_large_an_upload_is_one_sentence(opened: Callable[..., TestClient]) -> None:
    client = opened(max_bytes=1000)
    assert upload(client, bytes(1000)).status_code == 400  # no image
    answer = upload(client, bytes(1001))
    assert answer.status_code == 413
    assert answer.json()["problem"] == "it is larger than 1000 bytes: raise EB_SALIENCY_MAX_BYTES"


def test_old_uploads_are_dropped(opened: Callable[..., TestClient]) -> None:
    client = opened()
    keys = [upload(client, picture(size=(40, 30 + number))).json()["key"] for number in range(25)]
    kept = [key for key in client.get("/status").json()["photos"] if key.startswith("added-")]
    assert kept == keys[5:]
    assert client.get(f"/photo?photo={keys[0]}").status_code == 400


def test_uploads_have_a_number_of_bytes_in_all() -> None:
    contents = [picture(size=(40, 30 + number)) for number in range(4)]
    photos = Photos([], HERE_ONLY, RemoteOptions(max_bytes=sum(map(len, contents[2:]))), None)
    keys = [photos.add("cat.png", content) for content in contents]
    assert [*photos.names] == keys[2:]


def test_an_upload_has_the_same_address_after_a_restart() -> None:
    before, after = (Photos([], HERE_ONLY, RemoteOptions(), None) for _ in range(2))
    after.add("dog.png", picture(size=(20, 20)))
    keys = {
        before.add("cat.png", picture()),
        after.add("cat.png", picture()),
        after.add("copy.png", picture()),
    }
    assert len(keys) == 1
    assert [*after.names.values()] == ["dog.png", "copy.png"]


def test_photos_whose_names_look_alike_have_addresses_of_their_own(ten_photos: Path) -> None:
    for number, name in enumerate(("a\1.png", "a\2.png", "camera")):
        Path(name).write_bytes(picture(size=(40 + number, 30)))
    photos = Photos([Path("a\1.png"), Path("a\2.png"), Path("camera")], HERE_ONLY, RemoteOptions(), None)
    keys = ["a\ufffd.png", "a\ufffd.png+", "camera+"]  # the camera itself is "camera"
    assert [*photos.names] == keys
    widths = [Image.open(io.BytesIO(photos.encode_photo(key, 100))).width for key in keys]
    assert widths == [40, 41, 42]


def test_photos_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'nothing\.jpg' does not exist"):
        Photos([Path("nothing.jpg")], HERE_ONLY, RemoteOptions(), None)
    with pytest.raises(ConfigurationError, match="there are no photos"):
        Photos([tmp_path], HERE_ONLY, RemoteOptions(), None)

"""Figures as SVG and PDF: the same pictures at the same places as in the image, and text that stays text."""

import base64
import io
import re
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ebcli.drawing.figure import Figure, Words
from ebcli.drawing.legend import printable

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
HOSTILE = [
    "</text><script>alert(1)</script>",
    "a & b",
    "]]>",
    "$x_1$",
    "\\input{/etc/passwd}",
    "\"'",
    "\x1b[2J",
    "Ж 猫",
]


def figure(*texts: str) -> Figure:
    pictures = [Image.effect_noise((30, 20), 90).convert("RGB"), Image.linear_gradient("L").convert("RGB")]
    words = [Words(10, 40 * i, printable(text), 16 + i, i == 0, (90, 90, 90)) for i, text in enumerate(texts)]
    return Figure(200, 600, 400, [(13, 17, pictures[0]), (300, 100, pictures[1])], words)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?[0-9.]+", text)]


def test_svg_has_each_picture_pixel_by_pixel_at_its_place() -> None:
    one = figure("a")
    root = ElementTree.fromstring(one.encode("svg", {}))
    assert numbers(root.attrib["viewBox"]) == [0, 0, 216, 144]  # 600 x 400 pixels at 200 dpi in points
    images = [*root.iter(f"{SVG}image")]
    assert len(images) == 2
    for found, (left, top, picture) in zip(images, one.pictures, strict=True):
        read = Image.open(io.BytesIO(base64.b64decode(found.attrib[HREF].partition(",")[2]))).convert("RGB")
        across, x, y = np.eye(3), float(found.attrib.get("x", 0)), float(found.attrib.get("y", 0))
        for name, values in re.findall(r"(\w+)\(([^)]*)\)", found.attrib["transform"]):
            a = [*numbers(values), 0.0]
            steps = {
                "scale": np.diag([a[0], a[1] or a[0], 1]),
                "translate": [[1, 0, a[0]], [0, 1, a[1]], [0, 0, 1]],
            }
            across = across @ (
                np.reshape([*a[:6:2], *a[1:6:2], 0, 0, 1], (3, 3)) if name == "matrix" else steps[name]
            )
        size = float(found.attrib["width"]), float(found.attrib["height"])
        corners = across @ np.array([[x, x + size[0]], [y, y + size[1]], [1, 1]])
        low, high = np.sort(corners[:2]).T * 200 / 72
        assert low == pytest.approx([left, top], abs=0.02)
        assert high == pytest.approx([left + picture.width, top + picture.height], abs=0.02)
        pixels = np.asarray(read)
        if across[1, 1] < 0:  # it is drawn from the foot to the top
            pixels = pixels[::-1]
        np.testing.assert_array_equal(pixels, picture)


def test_svg_has_each_text_as_text_and_no_name_can_do_harm() -> None:
    root = ElementTree.fromstring(figure(*HOSTILE).encode("svg", {"class": "</dc:description>" + HOSTILE[0]}))
    texts = [*root.iter(f"{SVG}text")]
    assert ["".join(one.itertext()) for one in texts] == [printable(text) for text in HOSTILE]
    assert not [*root.iter(f"{SVG}script")]
    for i, one in enumerate(texts):
        assert float(one.attrib["x"]) == pytest.approx(10 * 72 / 200, abs=0.01)
        top = 40 * i * 72 / 200
        size = (16 + i) * 72 / 200
        assert top < float(one.attrib["y"]) < top + 1.1 * size  # the baseline lies below the top of letters


def test_pdf_has_texts_and_the_font() -> None:
    content = figure("tiger cat", "$x$ and Ж").encode("pdf", {})
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
    page = next(plain for plain in map(unpacked, streams) if b"BT" in plain)
    letters = b"".join(re.findall(rb"\(([^)]*)\)", page)).replace(
        b"\0", b""
    )  # between them is their distance
    assert b"tiger cat$x$ and " in letters
    assert b"/FontFile2" in content
    assert b"/ToUnicode" in content  # so the text can be searched and copied
    assert content.count(b"/Subtype /Image") == 2


def unpacked(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_settings_of_matplotlib_in_the_working_directory_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    one = figure("a")
    plain = one.encode("svg", {})
    (tmp_path / "matplotlibrc").write_text("text.usetex: true\nsavefig.bbox: tight\nfont.family: serif\n")
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context(fname=matplotlib.matplotlib_fname()):
        assert matplotlib.rcParams["text.usetex"]
        assert one.encode("svg", {}) == plain

"""A whole run of a network whose class names are hostile: pictures, page, names, records and messages."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image
from runs import photos, records

from ebcli.cli.saliency import main

NAMES = [
    "W" * 1_000_000,  # more than Pillow measures
    "漢" * 100_000,
    "\u0301" * 100_000,  # combining marks alone
    "\x1b[31mred\x1b[0m\x07",
    "right\u202eleft",
    "line\nbreak\r\n\ttab\u2028more",
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "../../etc/passwd\0",
    "same",
    "same",
    "",
]
FACTORY = f"""
import torch
from torch import nn
def make():
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, {len(NAMES)})
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.ReLU(), *head)
    net.categories = {NAMES!r}
    return net
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [["--panel"], ["--caption", "--raw"]])
def test_class_names_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ebcli.run.controls.references", lambda *_: {})
    photos(Path("photos"), 1)
    Path("nets.py").write_text(FACTORY, encoding="utf-8")
    targets = [word for index in range(len(NAMES)) for word in ("--target", str(index))]
    model = ["--model", "nets.py:make", "--layer", "1", "--crop", "32", "--workers", "0"]
    result = CliRunner().invoke(main, ["photos", "-o", "out", *model, *targets, *how, "--report", "-v"])
    assert result.exit_code == 0, result.stderr[-500:]
    for line in result.stderr.split("\n"):
        assert len(line) < 3000
        assert line.isprintable()
    pictures = [Path(path) for path in result.stdout.splitlines() if not path.endswith(".npz")]
    assert len(pictures) == (1 if "--panel" in how else len(NAMES))
    for picture in pictures:
        assert picture.parent == Path("out/0")
        with Image.open(picture) as image:
            image.load()
            assert max(image.size) < 10_000
    (record,) = records(Path("out"))
    assert len(record["classes"]) == len(NAMES)
    assert record["classes"][0]["name"] == NAMES[0]
    page = Path("out/report/index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page

"""What each kind of bad input ends in: a status, and a sentence for each thing that is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import invoke

# the arguments, and the exit status
TABLE = {
    "a good photo": ("good.png", 0),
    "no photo": ("", 2),
    "a photo that does not exist": ("gone.png", 1),
    "one of several does not exist": ("good.png gone.png", 1),
    "text as a photo": ("text.png", 1),
    "a truncated photo": ("cut.png", 1),
    "an empty directory": ("nothing", 2),
    "a tar file that is none": ("text.tar", 1),
    "a server that is not there": ("http://127.0.0.1:9/a.png", 1),
    "an array for a network of photos": ("objects.npy", 1),
    "an option that does not exist": ("good.png --nothing", 2),
    "a number out of range": ("good.png --top-k 0", 2),
    "options that exclude each other": ("good.png --target 1 --top-k 2", 2),
    "a class that does not exist": ("good.png --target nothing", 2),
    "a layer that does not exist": ("good.png --layer nothing", 2),
    "a format that cannot be written": ("good.png -o map.bmp", 2),
    "one file for several maps": ("good.png text.png -o map.png", 2),
    "a file as the directory": ("good.png -o text.txt/maps", 2),
    "somebody's file in the way": ("good.png -o text.png", 2),
    "settings that do not exist": ("good.png --config gone.toml", 2),
    "a list that does not exist": ("--from-file gone.txt", 2),
    "a list of what does not exist": ("--from-file list.txt", 1),
    "labels of no table": ("good.png --labels gone.csv", 2),
    "a command with a typo": ("chekc nothing", 2),
    "audit: no run": ("audit nothing", 2),
    "audit: records that are none": ("audit wrong", 2),
    "check: no run": ("check nothing", 2),
    "compare: no run": ("compare nothing nothing", 2),
    "report: no run": ("report nothing", 2),
    "verify: no run": ("verify nothing", 2),
    "info: not a picture of ours": ("info good.png", 2),
    "layers: no such model": ("layers -m nothing", 2),
    "models: no such name": ("models nothing", 1),
    "serve: no such photo": ("serve gone.png --no-open", 2),
    "ask: no such photo": ("ask gone.png -m nothing", 1),
}


@pytest.fixture
def bad_inputs(working_directory: Path) -> None:
    Image.new("RGB", (40, 30), "red").save("good.png")
    Image.effect_noise((200, 200), 90).save("cut.png")
    Path("cut.png").write_bytes(Path("cut.png").read_bytes()[:2000])
    for name in ("text.png", "text.txt", "text.tar"):
        Path(name).write_text("= no [such thing\n")
    Path("nothing").mkdir()
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    Path("list.txt").write_text("gone.png\n")
    Path("wrong").mkdir()
    Path("wrong/records.jsonl").write_text(json.dumps([1]) + "\n")


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_has_its_status_and_its_sentence(name: str, bad_inputs: None) -> None:
    arguments, status = TABLE[name]
    result = invoke(*arguments.split(), timeout="1", retries="0")
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    assert "unexpected" not in result.stderr
    assert all(len(line) < 400 for line in result.stderr.splitlines())
    if status == 2 and arguments:
        assert [line.startswith("Error: ") for line in result.stderr.splitlines()].count(True) == 1

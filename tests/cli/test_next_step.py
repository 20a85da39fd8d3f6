"""The last line of a run on a terminal: what to try next."""

import os
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
from stub_run import DONE, finished, invoke, started

from ebcli.cli.saliency import main
from ebcli.files.records import Record

SERVE = "Any class, any layer, in the browser: eb-saliency serve"
END = "(end)\n"


def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, stdout: bool = True, stderr: bool = True
) -> str:
    """The last line that a command prints to a pseudo-terminal, which each of the streams is or is not."""
    leader, follower = os.openpty()
    with (
        os.fdopen(follower, "w") as terminal,
        Path(os.devnull).open("w") as nowhere,
        monkeypatch.context() as patch,
    ):
        for name, is_terminal in (("stdout", stdout), ("stderr", stderr)):
            patch.setattr(sys, name, terminal if is_terminal else nowhere)
        with pytest.raises(SystemExit):
            main([*arguments])
        terminal.write(END)
        terminal.flush()
        shown = ""
        while not shown.endswith(END):
            shown += os.read(leader, 1 << 16).decode().replace("\r", "")
    os.close(leader)
    return "".join(shown.removesuffix(END).splitlines()[-1:])


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jpg").touch()
    Path("my photos").mkdir()


def several(worker: mock.Mock) -> None:
    worker.side_effect = lambda *_: finished(DONE, DONE)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("a.jpg", "More classes: eb-saliency a.jpg --top-k 3"),
        ("a.jpg --model vgg16", "More classes: eb-saliency a.jpg --model vgg16 --top-k 3"),
        ("a.jpg -o a.png", "More classes: eb-saliency a.jpg --top-k 3 --output a.png --panel"),
        ("a.jpg -o a.html", f"{SERVE} a.jpg"),  # which has the classes
        ("a.jpg -t cat", f"{SERVE} a.jpg"),
        ("a.jpg --model vgg16 -t cat", f"{SERVE} --model vgg16 a.jpg"),
        ("a.jpg -k 2 --resize 64", ""),  # the page would not have it
        ("https://localhost/a.jpg", ""),
    ],
)
def test_after_one_photo(
    arguments: str, expected: str, worker: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.side_effect = lambda *_: finished(DONE)
    said = on_a_terminal(monkeypatch, *arguments.split())
    assert said.startswith(expected) if expected else "eb-saliency" not in said
    command = shlex.split(said.partition(": ")[2])
    if "--top-k" in command:
        assert invoke(*command[1:]).exit_code == 0


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "All maps on one page: eb-saliency report out 'my photos'"),
        ("--report", "Which predictions are wrong? Add --labels FILE, or --labels folders"),
        ("--report --labels folders", f"{SERVE} 'my photos'"),
    ],
)
def test_after_several_photos(
    more: str, expected: str, worker: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(worker)
    assert on_a_terminal(monkeypatch, "my photos", "-o", "out", *more.split()) == expected


@pytest.mark.parametrize("options", ["-q", "--json", "--dry-run"])
def test_programs_and_quiet_people_get_none(
    options: str, worker: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(worker)
    assert "eb-saliency" not in on_a_terminal(monkeypatch, "my photos", *options.split())


@pytest.mark.parametrize("streams", [{"stdout": False}, {"stderr": False}])
def test_in_a_pipe_there_is_none(
    streams: dict[str, bool], worker: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    several(worker)
    assert "eb-saliency" not in on_a_terminal(monkeypatch, "my photos", **streams)
    assert "eb-saliency" not in invoke("my photos").output


def test_a_failed_run_has_none(worker: mock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    results = (one for one in [Record("a.jpg", "failed", error="no image")])
    worker.side_effect = lambda *_: started(results, 1)
    assert "eb-saliency" not in on_a_terminal(monkeypatch, "a.jpg")

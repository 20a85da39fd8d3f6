"""stdout and stderr that cannot be written to, and messages with untrusted text."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from runs import Forked, Started, finish, photos, records, tree

from ebcli.cli.console import say_error
from ebcli.cli.saliency import main

ROOT = Path(__file__).parents[2]
COUNT = 12
LAYERS = """
from collections import OrderedDict
from torch import nn


def network():
    layer = {"\\x1b]0;title\\x07": nn.Conv2d(3, 4, 3)}
    return nn.Sequential(OrderedDict(layer, r=nn.ReLU(), p=nn.AdaptiveAvgPool2d(1), f=nn.Flatten(), l=nn.Linear(4, 5)))
"""
PLAIN = ("photos", "-o", "maps", "-q")

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    photos(tmp_path / "cwd/photos", COUNT)
    return tmp_path / "cwd"


@pytest.mark.release
def test_a_full_disk_behind_stdout_is_named_and_what_is_done_is_recorded(cwd: Path) -> None:
    cwd.with_name("cwd.out").symlink_to("/dev/full")
    run = Started(cwd, *PLAIN)
    assert run.wait() == 2
    *_, summary, error = run.err.read_text().splitlines()
    assert error == "Error: cannot write to stdout: No space left on device"
    done = records(cwd / "maps")
    assert 0 < len(done) < COUNT
    assert summary == f"{COUNT} images: {len(done)} done, {COUNT - len(done)} left"
    assert all((cwd / path).is_file() for record in done for path in record["output"])
    assert not list((cwd / "maps").glob(".eb-saliency-*"))


def test_a_closed_stdout_ends_the_run_as_it_ends_other_programs(cwd: Path) -> None:
    os.mkfifo(cwd.with_name("cwd.out"))
    run = Started(cwd, *PLAIN)
    with cwd.with_name("cwd.out").open() as reader:
        assert reader.readline().startswith("maps/")
    assert run.wait() == 141
    assert "Error" not in run.err.read_text()
    done = records(cwd / "maps")
    assert done
    assert not list((cwd / "maps").glob(".eb-saliency-*"))
    cwd.with_name("cwd.out").unlink()
    finish(cwd, *PLAIN, "--skip-existing")
    assert len(records(cwd / "maps")) == COUNT


def test_a_run_whose_messages_nobody_can_read_goes_on(cwd: Path) -> None:
    cwd.with_name("cwd.err").symlink_to("/dev/full")
    run = Started(cwd, *PLAIN[:3])
    assert run.wait() == 0
    assert (
        len(run.out.read_text().splitlines())
        == COUNT
        == sum(path.endswith(".jpg") for path in tree(cwd / "maps"))
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("option", ["--help", "-h", "models", "--version"])
def test_help_and_lists_on_a_full_disk(option: str, cwd: Path) -> None:
    cwd.with_name("cwd.out").symlink_to("/dev/full")
    run = Started(cwd, option)
    assert run.wait() == 2
    *headings, error = run.err.read_text().splitlines()
    assert error.startswith("Error: ") and "No space left on device" in error
    assert headings == (["Classification:"] if option == "models" else [])


def test_an_error_message_is_one_short_line_without_escape_sequences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_error(f"a name with \x1b[31mred\r\n{'k' * 100_000}: choose another")
    message = capsys.readouterr().err
    assert message.startswith("Error: a name with \\x1b[31mred\\r\\nkkk")
    assert message.endswith("kkk: choose another\n")
    assert (message.count("\n"), len(message) < 2100) == (1, True)


def test_a_name_that_is_too_long_for_the_system_is_an_error_in_one_line() -> None:
    result = CliRunner().invoke(main, ["a.jpg", "--where", "a" * 5000])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is neither a pixel X,Y, a box X,Y,W,H nor the file of a mask" in result.stderr


def test_on_a_terminal_each_path_has_its_class_and_score(cwd: Path) -> None:
    leader, follower = os.openpty()
    photo = Path(ROOT, "sample_images/coffee.jpg")
    cwd.with_name("cwd.out").symlink_to(os.ttyname(follower))
    run = Forked(cwd, str(photo), "-k", "2", "-q")
    assert (run.wait(), run.err.read_text()) == (0, "")
    lines = os.read(leader, 1 << 16).decode().splitlines()
    assert [line.partition("  ")[2].partition(", ")[0] for line in lines] == ["espresso", "cup"]
    assert all(
        (cwd / line.partition("  ")[0]).is_file() and 0 < float(line.rpartition(" ")[2]) < 1 for line in lines
    )


@pytest.fixture
def terminal(cwd: Path) -> Callable[..., str]:
    """What a command shows on a terminal."""

    def show(*arguments: str) -> str:
        leader, follower = os.openpty()
        for stream in ("out", "err"):
            cwd.with_name(f"cwd.{stream}").unlink(missing_ok=True)
            cwd.with_name(f"cwd.{stream}").symlink_to(os.ttyname(follower))
        Started(cwd, *arguments).wait()
        os.close(follower)
        return os.read(leader, 1 << 16).decode()

    return show


EVIL = "it's \x1b]0;title\x07.jpg"


def test_names_are_quoted_on_a_terminal_as_ls_does_it(cwd: Path, terminal: Callable[..., str]) -> None:
    (cwd / "photos/0/0000.jpg").rename(cwd / EVIL)
    shown = terminal(EVIL, "--dry-run") + terminal(EVIL, "-o", "maps") + terminal("verify", "maps")
    (map_,) = (cwd / "maps").glob("it*.jpg")
    map_.unlink()
    shown += terminal("verify", "maps")
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    quoted, *_ = shown.splitlines()
    assert subprocess.check_output(["bash", "-c", f"printf %s {quoted}"], text=True) == EVIL


def test_names_of_layers_do_not_command_the_terminal(cwd: Path, terminal: Callable[..., str]) -> None:
    (cwd / "net.py").write_text(LAYERS)
    for option in ((), ("--debug",)):
        shown = terminal("layers", "--model", "net.py:network", *option)
        assert "\x1b]" not in shown
        assert r"\x1b]0;title\x07" in shown


def test_in_a_pipe_names_stay_as_they_are(cwd: Path) -> None:
    (cwd / "photos/0/0000.jpg").rename(cwd / EVIL)
    run = finish(cwd, EVIL, "-o", "maps")
    assert run.out.read_bytes().startswith(f"maps/{EVIL}".encode())

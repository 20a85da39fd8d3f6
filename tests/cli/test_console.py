"""What a run says while it goes on, and how it ends. Loads no model."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator
from unittest import mock

import click
import pytest
from stub_run import DONE, PICTURE, finished, invoke, started

from ebcli.cli.console import sign_of_life
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, OutputError, UnfinishedError
from ebcli.files.records import ClassRecord, Record
from ebcli.run.pipeline import Run
from ebcli.run.plan import RunPlan


def test_the_first_interrupt_lets_what_has_begun_come_to_its_end(worker: mock.Mock) -> None:
    stopping, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def results() -> Generator[Record]:
        yield DONE
        signal.raise_signal(signal.SIGINT)
        assert stopping.is_set()
        yield DONE

    worker.return_value = started(results(), 5, stopping=stopping)
    result = invoke("d")
    assert (result.exit_code, result.stdout) == (130, f"{PICTURE}\n" * 2)
    assert result.stderr == (
        "Interrupted. 5 images: 2 done, 3 left. To resume, repeat the command with --skip-existing\n"
    )
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("seconds", "rate"), [(2, "2.5 images/s"), (20, "4.0 s per image")])
def test_a_run_over_several_images_ends_with_its_rate(
    worker: mock.Mock, monkeypatch: pytest.MonkeyPatch, seconds: float, rate: str
) -> None:
    def run(*options: str) -> str:
        clock = mock.Mock(perf_counter=mock.Mock(side_effect=[0.0, float(seconds)]))
        monkeypatch.setattr("ebcli.cli.execution.time", clock)
        worker.return_value = started((DONE for _ in range(5)), 5)
        return invoke("d", *options).stderr

    assert run() == f"5 images in {seconds}.0 s, {rate}\n"
    assert run("--quiet") == ""


def test_a_package_that_is_larger_than_a_limit_of_memory_is_no_surprise(worker: mock.Mock) -> None:
    worker.side_effect = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    result = invoke("d")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: a package cannot be loaded (libtorch_cpu.so: failed to map segment from shared object): raise the "
        "limit of memory, or install it again\n",
    )


def test_the_second_interrupt_ends_it(worker: mock.Mock) -> None:
    def results() -> Generator[Record]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        yield DONE

    worker.return_value = started(results(), 5)
    result = invoke("d")
    assert (result.exit_code, result.stdout) == (130, "")


def test_an_empty_map_is_said(worker: mock.Mock) -> None:
    blank = ClassRecord(1, None, 0.5, mass=0.0, blank=True)
    worker.return_value = finished(Record("a.jpg", "done", classes=(blank,)))
    result = invoke("a.jpg")
    assert result.exit_code == 0
    assert "a.jpg: the map of class 1 is blank" in result.stderr


def test_several_layers_are_told_apart(worker: mock.Mock) -> None:
    shown = tuple(
        ClassRecord(1, "cat", 0.5, mass=1.0, blank=True, layer=layer) for layer in ("features.5", "input")
    )
    worker.return_value = finished(Record("a.jpg", "done", classes=shown))
    lines = invoke("-v", "a.jpg").stderr.splitlines()
    for layer in ("features.5", "input"):
        assert f"a.jpg: class 1 (cat) at {layer}, score 0.500, mass 1.000" in lines
        assert f"a.jpg: the map of class 1 (cat) at {layer} is blank" in lines


def test_the_scale_of_a_run_is_told(worker: mock.Mock) -> None:
    for option, expected in (
        (["--scale", "run"], "--scale 0.36"),
        (["--scale", "0.36"], ""),
        (["--scale", "run", "-q"], ""),
    ):
        worker.return_value = finished(DONE, style=DrawingStyle(vmax=0.36))
        stderr = invoke(*option, "a.jpg").stderr
        assert (expected in stderr) if expected else stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="file names are text elsewhere")
def test_a_path_that_is_no_text_is_printed_byte_for_byte(worker: mock.Mock) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    shown = ClassRecord(1, None, 0.5, mass=1.0, blank=True)
    worker.return_value = finished(Record(name, "done", output=(name,), output_bytes=(1,), classes=(shown,)))
    result = invoke("-v", name)
    assert result.exit_code == 0
    assert result.stdout_bytes == b"caf\xe9.jpg\n"


def test_a_file_name_cannot_command_the_terminal(worker: mock.Mock) -> None:
    worker.return_value = finished(Record("a\n\x1b[2J.jpg", "failed", error="it is broken"))
    result = invoke("d")
    assert result.stderr.splitlines()[0] == r"'a\n\x1b[2J.jpg': it is broken"


def test_only_files_that_are_no_images(worker: mock.Mock) -> None:
    worker.return_value = finished(Record("d/notes.txt", "not an image"))
    result = invoke("d")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: no images found in 'd', only 1 other file: name an image, or a directory that holds some\n"
    )
    assert "change --include or --exclude" in invoke("--include", "*.jpg", "d").stderr
    worker.return_value = finished()
    assert (
        invoke("d").stderr == "Error: no images found in 'd': name an image, or a directory that holds some\n"
    )
    worker.return_value = finished()
    empty_shard = invoke("--shard", "2/9", "d")
    assert (empty_shard.exit_code, empty_shard.stderr) == (0, "Shard 2/9 has none of the images\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigurationError("there is no model 'vgg61'"), 2, "Error: there is no model 'vgg61'\n"),
        (
            ValueError("two\nlines"),
            2,
            "Error: ValueError: two lines (unexpected; run with --debug for the traceback)\n",
        ),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
    ],
)
def test_errors_are_one_line_and_an_exit_status(
    error: BaseException, code: int, message: str, worker: mock.Mock
) -> None:
    worker.side_effect = error
    result = invoke("a.jpg")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", message)


def test_what_was_done_before_an_error_is_printed(worker: mock.Mock) -> None:
    def results() -> Generator[Record]:
        yield DONE
        raise OutputError("cannot write 'b.png': No space left on device")

    worker.return_value = started(results(), 2)
    result = invoke("a.jpg", "b.jpg")
    assert (result.exit_code, result.stdout) == (2, f"{PICTURE}\n")
    assert result.stderr.splitlines() == [
        "2 images: 1 done, 1 left",
        "Error: cannot write 'b.png': No space left on device",
    ]


def test_debug_shows_the_traceback(worker: mock.Mock) -> None:
    worker.side_effect = ConfigurationError("wrong")
    result = invoke("--debug", "a.jpg")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "ConfigurationError: wrong" in result.stderr


@pytest.mark.parametrize("quiet", [True, False])
def test_warnings_are_one_line_or_quiet(quiet: bool, worker: mock.Mock) -> None:
    def warn(plan: RunPlan, sink: None) -> Run:
        warnings.warn("be careful", stacklevel=1)
        warnings.warn("be careful", stacklevel=2)  # from another line
        return finished(DONE)

    worker.side_effect = warn
    with warnings.catch_warnings(record=True) as elsewhere:
        result = invoke(*["-q"] * quiet, "a.jpg")
    assert not elsewhere
    assert result.stderr == ("" if quiet else "Warning: be careful\n")


@pytest.mark.parametrize(("no_color", "label"), [("", "\x1b[31m\x1b[1mError:\x1b[0m"), ("1", "Error:")])
def test_errors_are_red_on_a_terminal_unless_no_color_is_set(no_color: str, label: str) -> None:
    code = "from ebcli.cli.console import say_error\nsay_error('wrong')\n"
    assert run_on_a_terminal(code, NO_COLOR=no_color) == f"{label} wrong\r\n"


def test_a_sign_of_life_on_a_terminal_only(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import click\nfrom ebcli.cli.console import sign_of_life\ncontext = click.Context(click.Command('x'))\n"
        "context.params['quiet'] = False\nwith context, sign_of_life('Loading vgg16 ...'): pass\n"
    )
    shown = run_on_a_terminal(code)
    assert "Loading vgg16 ..." in shown
    assert shown.endswith("\r")  # and it is gone
    assert "Loading" not in run_on_a_terminal(code.replace("False", "True"))
    context = click.Context(click.Command("x"))
    context.params["quiet"] = False
    with context, sign_of_life("Loading vgg16 ..."):
        pass
    assert capfd.readouterr().err == ""


def run_on_a_terminal(code: str, **environment: str) -> str:
    """What a Python of its own prints to a terminal."""
    import fcntl  # none of these on Windows
    import pty
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    subprocess.run(
        [sys.executable, "-c", code],
        stdin=follower, stdout=follower, stderr=follower, env={**os.environ, **environment}, check=True, timeout=120,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 4096):
            shown += part
    except OSError:  # on Linux, the end of a terminal
        pass
    finally:
        os.close(leader)
    return shown.decode()


def test_what_could_not_be_finished_has_a_status_that_says_repeat(worker: mock.Mock) -> None:
    """Whether the run fails to start, or fails in the middle."""

    def results() -> Generator[Record]:
        yield DONE
        raise UnfinishedError("the cluster is lost")

    worker.return_value = started(results(), 5)
    result = invoke("d")
    assert (result.exit_code, result.stdout) == (75, f"{PICTURE}\n")
    assert result.stderr.endswith("Error: the cluster is lost\n")
    worker.side_effect = UnfinishedError("the cluster is lost")
    result = invoke("d")
    assert (result.exit_code, result.stdout) == (75, "")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no nohup")
def test_a_closed_terminal_stops_a_run_but_not_under_nohup(worker: mock.Mock) -> None:
    def results() -> Generator[Record]:
        yield DONE
        signal.raise_signal(signal.SIGHUP)
        yield DONE

    for handler, status in ((signal.SIG_IGN, 0), (signal.SIG_DFL, 128 + signal.SIGHUP)):
        before = signal.signal(signal.SIGHUP, handler)
        try:
            worker.return_value = started(results(), 2)
            assert invoke("d").exit_code == status
            assert signal.getsignal(signal.SIGHUP) is handler
        finally:
            signal.signal(signal.SIGHUP, before)

"""The streams that the user reads, results on stdout and everything else on stderr, and errors in one line."""

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

import click
from click.core import ParameterSource

from ebcli.errors import EbcliError, OutputError, UnfinishedError, in_words

_LONGEST = 2000  # characters of a message; names in untrusted files have any number

SOME_FAILED, MISUSED, UNFINISHED = 1, 2, 75  # 75 is EX_TEMPFAIL of sysexits.h: repeat it
CLOSED = 141  # as of a program that SIGPIPE ends


def write_out(content: str | bytes, out: IO[str] | None = None, nl: bool = True) -> None:
    """Print a result to stdout, or to ``out`` in its place. If it was closed, as by ``head -1``, the command ends.

    Raises:
        OutputError: it cannot be written to.
    """
    if isinstance(content, str) and _is_terminal(out):
        content = _escape(content, "\n")
    try:
        click.echo(content, out, nl=nl)
    except OSError as error:
        _discard(out or sys.stdout)
        if error.errno == errno.EPIPE:
            sys.exit(CLOSED)
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def write_path(path: Path | str) -> None:
    """Print the path of a result."""
    write_out(quote_path(path))


def quote_path(path: Path | str, out: IO[str] | None = None) -> bytes:
    """A path to print to stdout, or to ``out`` in its place.

    It is printed byte by byte, as not every file name is valid text. But on a terminal, which file names must not
    command, it is quoted as ``ls`` does it, so that shells can read it.
    """
    name = os.fsdecode(path)
    if name.isprintable() or not _is_terminal(out):
        return os.fsencode(path)
    return f"'{''.join(map(_quote, name))}'".encode()


def _quote(character: str) -> str:
    """A character between single quotes of a shell."""
    if character == "'":
        return r"'\''"
    if character.isprintable():
        return character
    octal = "".join(f"\\{byte:03o}" for byte in os.fsencode(character))
    return f"'$'{octal}''"


def _is_terminal(out: IO[str] | None) -> bool:
    return (out or sys.stdout).isatty()


def _discard(stream: IO[str]) -> None:
    """Make what a stream still holds, and all that follows, go nowhere: Python would fail to flush it at its exit."""
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def say(message: str, label: str = "", color: bool | None = None) -> None:
    """Print a line to stderr, behind a label. If nobody can read it, the work goes on."""
    try:
        click.echo(label + _escape(message, "\n"), err=True, color=color)
    except OSError:
        _discard(sys.stderr)


def is_quiet() -> bool:
    """Whether ``--quiet`` is given."""
    return bool(click.get_current_context().params["quiet"])


def note(message: str) -> None:
    """Print a line to stderr, unless ``--quiet`` is given."""
    if not is_quiet():
        say(one_line(message))


def note_environment() -> None:
    """Name the environment variables that set options of this command."""
    context = click.get_current_context()
    names = [str(parameter.name) for parameter in context.command.params]
    names = [name for name in names if context.get_parameter_source(name) == ParameterSource.ENVIRONMENT]
    variables = [f"{context.auto_envvar_prefix}_{name.upper()}" for name in names]
    note(f"Read from the environment: {', '.join(variables) or 'nothing'}")


def say_error(message: str, label: str = "Error") -> None:
    """Print a line about an error to stderr; its label is red on a terminal, unless ``NO_COLOR`` is set."""
    color = False if os.environ.get("NO_COLOR") else None  # None: Click colors on a terminal only
    start = click.style(f"{label}:", fg="red", bold=True)
    say(f" {one_line(message)}", start, color)


def one_line(message: str) -> str:
    """A message in one line without escape sequences; a very long one lacks its middle."""
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
    return _escape(message)


def _escape(text: str, harmless: str = "") -> str:
    """A text in which a terminal finds no escape sequences."""
    characters = []
    for character in text:
        if not character.isprintable() and character not in harmless:
            character = character.encode("unicode_escape").decode()  # noqa: PLW2901
        characters.append(character)
    return "".join(characters)


@contextmanager
def sign_of_life(message: str) -> Iterator[None]:
    """Show a line on the terminal while something takes a moment, unless ``--quiet`` is given; it leaves nothing."""
    from tqdm import tqdm

    hidden = is_quiet() or None  # None: shown on a terminal only
    with tqdm(desc=one_line(message), bar_format="{desc}", leave=False, disable=hidden):
        yield


def display_path(path: Path | str) -> str:
    """A path for messages: line breaks and escape sequences are escaped."""
    name = click.format_filename(path)
    return name if name.isprintable() else repr(name)


def exit_at_once() -> NoReturn:
    """End the process with the exit status 0, whatever its threads do.

    ``sys.exit()`` would wait for them: `ThreadPoolExecutor` joins its threads when Python exits. One may compute
    a map for minutes, which nothing can stop.
    """
    sys.stdout.flush()
    os._exit(0)


class _Signal(KeyboardInterrupt):
    """A signal. After a plain KeyboardInterrupt within ``exec``, Python ends with SIGINT whatever the status was."""


@contextmanager
def handle_signals(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Have the signals that end a program handled."""
    ending = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread():  # the only one that gets signals
        ending = set()
    before = {}
    for number in ending:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def plain_errors(debug: bool) -> Iterator[None]:
    """Turn any error into one sentence on stderr and an exit status; with ``--debug``, a traceback.

    SIGTERM and SIGHUP interrupt like Ctrl-C, so that what was begun is put away.
    """
    caught: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        caught.append(number)
        raise _Signal

    def unraisable(event: Any) -> None:
        # in a destructor, where Python drops exceptions: once more, after it
        if isinstance(event.exc_value, _Signal):
            threading.Timer(0.01, os.kill, (os.getpid(), caught[0])).start()
        else:
            before(event)

    before = sys.unraisablehook
    sys.unraisablehook = unraisable
    try:
        with handle_signals(interrupt):
            yield
    except KeyboardInterrupt as interruption:
        say(f"{' '.join(map(str, ('Interrupted', *interruption.args)))}.")
        sys.exit(128 + (caught or [signal.SIGINT])[0])
    except (click.exceptions.Exit, click.ClickException, click.Abort):
        raise
    except Exception as error:
        if debug:
            import traceback

            say(traceback.format_exc().rstrip())
        else:
            say_error(_sentence(error))
        sys.exit(UNFINISHED if isinstance(error, UnfinishedError) else MISUSED)
    finally:
        sys.unraisablehook = before


def _sentence(error: Exception) -> str:
    if isinstance(error, EbcliError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory: lower --workers or --batch-size, or split the inputs"
    # of a package that is broken, or larger than a limit such as ulimit -v
    if isinstance(error, ImportError):
        reason = " ".join(str(error).split())
        return f"a package cannot be loaded ({reason}): raise the limit of memory, or install it again"
    return f"{in_words(error)} (unexpected; run with --debug for the traceback)"


@contextmanager
def plain_warnings(quiet: bool) -> Iterator[None]:
    """Print each warning as one line on stderr, without its source line."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        else:
            # Pillow warns at half the size it refuses, without naming the file
            warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
            # of onnx2torch's slices, and of vmap, which goes on by a loop
            messages = "Using a non-tuple|Truncating the start|There is a performance drop"
            warnings.filterwarnings("ignore", message=messages)
            # the same one again only after many others
            warn_once = lru_cache(lambda message: say(f"Warning: {one_line(message)}"))
            warnings.showwarning = lambda message, *_, **__: warn_once(str(message))
        yield

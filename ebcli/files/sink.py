"""Where the results of a run go: the interface of sinks, and those with one picture; ``directory.py`` has the other."""

# ruff: noqa: ARG002 - sinks without records need not do what a directory must

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from os.path import isdir, isfile, lexists
from pathlib import Path

from ebcli.errors import ConfigurationError, OutputError, as_output_error
from ebcli.files.naming import AUTO, MOVING_FORMATS
from ebcli.files.private import private_directory
from ebcli.files.records import Record
from ebcli.files.sources import Source

# paths below the output directory, and contents; or files there with these contents, which are moved
Files = Mapping[Path, bytes | Path]
IsImage = Callable[[Source], bool]
IsResult = Callable[[Path], bool]  # of a file name


class Sink(AbstractContextManager["Sink"]):
    """Where the results of a run go. What is to be written is written in its context.

    Attributes:
        directory: the directory that it writes to; None if it keeps no records of what it wrote.
    """

    directory: Path | None = None

    @property
    def workplace(self) -> Path | None:
        """The directory in which results that take long may grow, and go on after a kill; None if there is none."""
        return None

    def __exit__(self, *_: object) -> None:
        """Nothing has to be closed."""

    def check(self) -> None:
        """Check that results can be written; nothing is left behind.

        Raises:
            ConfigurationError: they would replace a file that this program did not write.
            OutputError: they cannot be written.
        """

    def has_finished(self, source: Source, configuration: str, other_inputs: Callable[[], str] = str) -> bool:
        """Whether it has all results of a file, from its present state and with an equal configuration.

        For the arguments, see ``Results.is_finished``.
        """
        return False

    def refuse(
        self, sources: Sequence[Source], accepts: IsImage, is_result: IsResult, extra_files: Iterable[Path]
    ) -> None:
        """Refuse a run that would write what it may not.

        Args:
            sources: the files to work on.
            accepts: whether a file is an image.
            is_result: whether the run may write a file of this name.
            extra_files: other files that it writes, below the directory.

        Raises:
            ConfigurationError: it would replace files of others, or two of its inputs would have the same results.
            OutputError: what is there cannot be read.
        """

    def start(self, settings: str | None) -> None:
        """Begin, with the settings of the run, if there are any."""

    @abstractmethod
    def write(self, files: Files, record: Record) -> Record:
        """Write the results of an image, all or none of them.

        Args:
            files: paths below the output directory, and contents; empty if it failed or has no maps.
            record: the image's record, whose ``output`` are these paths.

        Returns:
            The record with the paths of the files that were written.

        Raises:
            OutputError: they cannot be written.
        """


class OneFile(Sink):
    """A sink for the only picture of a run.

    Args:
        path: the file.
        format: its format, such as ``png``; ``AUTO`` for that of a video, by its name.
        overwrite: also replace a file that this program did not write.
    """

    def __init__(self, path: Path, format: str, overwrite: bool) -> None:
        self.path = path
        self.format = format
        self._overwrite = overwrite

    @property
    def workplace(self) -> Path:
        return self.path.parent

    def check(self) -> None:
        from ebcli.files.encoding import read_facts

        check_file(self.path, self._overwrite, lambda: bool(read_facts(self.path)), "--output")

    def write(self, files: Files, record: Record) -> Record:
        if not record.output:
            return record
        suffix = self.path.suffix.lower()
        format_ = self.format
        if format_ == AUTO and suffix in MOVING_FORMATS:
            format_ = MOVING_FORMATS[suffix]
        content = _only_picture(files, record, format_, str(self.path))
        with atomic_write(self.path) as temporary:
            if isinstance(content, Path):
                content.replace(temporary)
            else:
                temporary.write_bytes(content)
        return replace(record, output=(str(self.path),))


class Stdout(Sink):
    """A sink for the only picture of a run, which goes to stdout.

    Args:
        put: writes bytes there.
        format: the picture's format.
    """

    def __init__(self, put: Callable[[bytes], object], format: str) -> None:
        self.format = format
        self._put = put

    def write(self, files: Files, record: Record) -> Record:
        if record.output:
            content = _only_picture(files, record, self.format, "stdout")
            self._put(content.read_bytes() if isinstance(content, Path) else content)
        return replace(record, output=())


def _only_picture(files: Files, record: Record, format_: str, name: str) -> bytes | Path:
    """The one picture among the results of an image: videos and volumes have a contact sheet beside them."""
    suffix = f".{format_}"
    pictures = [content for path, content in files.items() if path.suffix == suffix]
    if len(pictures) >= len(record.classes) > 1:
        raise OutputError(
            f"{record.input} has {len(pictures)} maps: "
            "add --panel to draw them in one figure, add --top-k 1, or name a directory with -o"
        )
    if not pictures:
        raise OutputError(f"'{name}' cannot hold a picture, and {record.model} explains images: choose .png")
    return pictures[0]


def check_writable(directory: Path, file: Path | None = None) -> None:
    """Check that a directory exists or can be made, and can be written to; nothing is left behind.

    Args:
        directory: the directory.
        file: the only file that is to be written there, for messages.

    Raises:
        OutputError: it cannot.
    """
    target = f"to '{directory}'" if file is None else f"'{file}'"
    ancestor = directory
    while not lexists(ancestor) and ancestor != ancestor.parent:  # a working directory may not be searchable
        ancestor = ancestor.parent
    if lexists(ancestor) and not isdir(ancestor):
        raise OutputError(f"cannot write {target}: '{ancestor}' is not a directory")
    with as_output_error(f"write {target}"), tempfile.TemporaryFile(dir=ancestor):
        pass


def check_file(path: Path, overwrite: bool, is_own: Callable[[], bool], option: str) -> None:
    """Check that a file that an option names can be written, and replaces none but this program's own.

    Raises:
        ConfigurationError: it would.
        OutputError: its directory cannot be written to.
    """
    if lexists(path) and not overwrite:
        is_ours = False
        with suppress(OSError, ValueError):  # of files of other kinds
            is_ours = isfile(path) and is_own()  # a pipe would have to be waited for
        if not is_ours:
            raise ConfigurationError(
                f"'{path}' would be replaced, but this program did not write it: "
                f"choose another {option}, or pass --overwrite"
            )
    check_writable(path.parent, path)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A file to write, which then replaces the one at a path: that is complete, or as it was before.

    Raises:
        OutputError: it cannot be written.
    """
    with as_output_error(f"write '{path}'"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_directory(path.parent) as private:
            temporary = private / "result"
            yield temporary
            temporary.replace(path)  # atomic

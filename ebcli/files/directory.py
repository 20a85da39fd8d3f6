"""The sink of runs over many images: a directory with records; it checks what a run may replace there."""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ebcli.datatypes.explanation import JsonObject
from ebcli.errors import ConfigurationError, OutputError, as_output_error, reason
from ebcli.files.naming import MARKER, RECORDS, SETTINGS, parse_result_name, sha256
from ebcli.files.paths import first_link, make_folder
from ebcli.files.private import finish_killed_runs, private_directory, stored_name
from ebcli.files.records import Record, append_lines
from ebcli.files.results import Results
from ebcli.files.sink import Files, IsImage, IsResult, Sink, check_writable
from ebcli.files.sources import Source

_ADVICE = "choose another --output, or pass --overwrite"


def refuse_foreign_files(
    directory: Path,
    files: Iterable[Path],
    overwrite: bool,
    relpaths: Iterable[Path] = (),
    is_result: IsResult = lambda _: False,
) -> None:
    """Check that a run replaces no files but this program's own, unless it may overwrite them.

    Args:
        directory: the output directory.
        files: files that the run writes, below the directory.
        overwrite: whether it may replace any.
        relpaths: the inputs' paths below the directory, see ``output_relpath``, beside which results go.
        is_result: whether the run may write a result of this name.

    Raises:
        ConfigurationError: it would replace others; the message names the first few.
        OutputError: the directory cannot be read.
    """
    if overwrite:
        return
    result_names: dict[Path, set[str]] = defaultdict(set)
    for relpath in relpaths:
        result_names[relpath.parent].add(relpath.name)
    results = Results(directory)
    foreign = [path for path in map(directory.joinpath, files) if results.is_foreign(path)]
    foreign += sorted(itertools.islice(_foreign(results, result_names, is_result), 4))
    if not foreign:
        return
    examples = ", ".join(f"'{path}'" for path in foreign[:3])
    if foreign[3:]:
        examples += " and others"
    pronoun = "them" if foreign[1:] else "it"
    raise ConfigurationError(
        f"{examples} would be replaced, but this program did not write {pronoun}: {_ADVICE}"
    )


def _foreign(results: Results, result_names: Mapping[Path, set[str]], is_result: IsResult) -> Iterator[Path]:
    """Files of others with the names of results, which follow those of inputs."""
    directory = results.directory
    for folder, names in result_names.items():
        link = first_link(directory, folder)
        if link:
            raise ConfigurationError(
                f"'{link}' is a symbolic link, but results stay inside --output: remove the link"
            )
        paths: list[Path] = []
        with as_output_error(f"write to '{directory / folder}'"), suppress(FileNotFoundError):
            paths += (directory / folder).iterdir()
        for path in paths:
            origin = parse_result_name(path)
            if origin and origin[0].name in names and is_result(path) and results.is_foreign(path):
                yield path


def _ignores_case(directory: Path) -> bool:
    """Whether a directory, or where it will be made, is on a file system without case, as on Windows and macOS."""
    path = directory.absolute()
    for existing in filter(os.path.exists, (path, *path.parents)):
        name = existing.name.swapcase()
        if name != existing.name:
            other = existing.with_name(name)
            return os.path.exists(other) and existing.samefile(other)
    return False


class OutputFolder(Sink):
    """An output directory: a sink with records, whose results are kept, and skipped by later runs.

        with OutputFolder(directory, overwrite=False) as folder:
            folder.write(files, record)

    Files are first written to the run's own directory, ``.eb-saliency-*``, and then renamed. So at every moment a
    result is missing, as it was before, or complete. The run holds a lock on its directory; the next run removes
    the directories of killed runs, which are no longer locked.

    Once open, it can be sent to other processes and machines that see the directory; these leave the records to this
    one.

    Args:
        directory: created if it does not exist.
        overwrite: also replace files that this program did not write.

    Attributes:
        directory: the output directory.
        private: the run's own directory in it.
    """

    directory: Path

    @property
    def workplace(self) -> Path:
        return self.directory

    def __init__(self, directory: Path, overwrite: bool) -> None:
        self.directory = directory
        self._overwrite = overwrite

    def __enter__(self) -> OutputFolder:
        with as_output_error(f"write to '{self.directory}'"):
            self.directory.mkdir(parents=True, exist_ok=True)
        self._scratch = private_directory(self.directory, restore=True)
        self.private = self._scratch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the run's own directory."""
        self._scratch.__exit__(None, None, None)

    def __getstate__(self) -> JsonObject:
        return {**vars(self), "_scratch": None}

    def check(self) -> None:
        check_writable(self.directory)
        finish_killed_runs(self.directory)

    @cached_property
    def _results(self) -> Results:
        return Results.read(self.directory)

    def has_finished(self, source: Source, configuration: str, other_inputs: Callable[[], str] = str) -> bool:
        return self._results.is_finished(source, configuration, other_inputs)

    def refuse(
        self, sources: Sequence[Source], accepts: IsImage, is_result: IsResult, extra_files: Iterable[Path]
    ) -> None:
        folds_case = _ignores_case(self.directory)
        by_relpath: dict[Path, Source] = {}
        by_name = by_relpath
        if folds_case:
            by_name = {}
        for source in sources:
            relpath = source.relpath
            name = Path(str(relpath).casefold()) if folds_case else relpath
            other = by_name.get(name)
            by_relpath[relpath] = by_name[name] = source
            if other is not None and accepts(other) and accepts(source):
                raise ConfigurationError(
                    f"'{other.name}' and '{source.name}' would both be written to '{self.directory / relpath}': "
                    "explain them in two runs, each with an --output of its own"
                )
            if self._overwrite:
                continue
            before = self._results.other_input(source)
            if before is not None and accepts(source):
                raise ConfigurationError(
                    f"'{self.directory / relpath}' has results of '{before}', "
                    f"which those of '{source.name}' would replace: {_ADVICE}"
                )
        refuse_foreign_files(self.directory, extra_files, self._overwrite, by_relpath, is_result)

    def start(self, settings: str | None) -> None:
        """Make sure that there are records, and write the settings of the run, if there are any."""
        self.record()
        if settings is not None:
            self.add({SETTINGS: settings.encode(errors="replace")})

    def write(self, files: Files, record: Record) -> Record:
        """Write the results of an image and its record; for the arguments, see ``Sink.write``.

        All are stored before they are recorded, and recorded before the first one is renamed to its final path. So
        whenever a run is killed, what is there is complete, and known to be this program's.
        """
        record = replace(record, output=tuple(str(self.directory / path) for path in record.output))
        self.add(files, record)
        return record

    def add(self, files: Files, record: Record | None = None) -> None:
        """Write files; the SHA-256 of those without a record go to the marker.

        Args:
            files: paths below the directory, and contents.
            record: that of the image whose results they are.

        Raises:
            OutputError: there is no space, or a file that this program did not write would be replaced.
        """
        if not self._scratch:  # a copy elsewhere leaves the records to this one
            record = None
        recorded_paths = {Path(result.path) for result in record.results} if record else set()
        targets: dict[Path, Path] = {}
        path = self.directory
        try:
            for relative, content in files.items():
                path = self.directory / relative
                make_folder(self.directory, relative.parent)
                self._check_replaceable(relative)
                temporary = self.private / stored_name(relative)
                targets[temporary] = path
                if isinstance(content, Path):
                    content.replace(temporary)
                else:
                    temporary.write_bytes(content)
            path = self.directory / MARKER
            digests = [
                (sha256(content), str(relative))
                for relative, content in files.items()
                if relative not in recorded_paths and isinstance(content, bytes)
            ]
            if digests:
                append_lines(path, *map(json.dumps, digests))
            if record:
                self.record(record)
            for temporary, path in targets.items():
                temporary.replace(path)
        except OSError as error:
            raise OutputError(f"cannot write '{path}': {reason(error)}") from error
        finally:
            for temporary in targets:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def _check_replaceable(self, relative: Path) -> None:
        path = self.directory / relative
        if not self._overwrite and self._results.is_foreign(path):
            raise OutputError(
                f"'{path}' appeared during this run, and this program did not write it: "
                "move it away, or pass --overwrite"
            )

    def record(self, *records: Record) -> None:
        """Append to the records.

        Raises:
            OutputError: there is no space.
        """
        with as_output_error(f"write the records in '{self.directory}'"):
            append_lines(self.directory / RECORDS, *(record.line() for record in records))

"""The sink of runs over many images: a directory with records; it checks what a run may replace there."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import lexists
from pathlib import Path

from ebcli.datatypes.explanation import JsonObject
from ebcli.errors import ConfigurationError, OutputError, reason
from ebcli.files.naming import MARKER, RECORDS, SETTINGS, output_relpath, parse_result_name, sha256
from ebcli.files.ownership import OwnFiles, as_output_error, finish_killed_runs, private_directory, stored_name
from ebcli.files.paths import FileState, first_link
from ebcli.files.records import Record, Result, append_lines, read_records
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
    own_files = OwnFiles(directory)
    foreign = [path for path in map(directory.joinpath, files) if lexists(path) and path not in own_files]
    foreign += sorted(itertools.islice(_foreign(directory, result_names, is_result, own_files), 4))
    if not foreign:
        return
    examples = ", ".join(f"'{path}'" for path in foreign[:3])
    if foreign[3:]:
        examples += " and others"
    pronoun = "them" if foreign[1:] else "it"
    raise ConfigurationError(f"{examples} would be replaced, but this program did not write {pronoun}: {_ADVICE}")


def _foreign(
    directory: Path, result_names: Mapping[Path, set[str]], is_result: IsResult, own_files: OwnFiles
) -> Iterator[Path]:
    for folder, names in result_names.items():
        link = first_link(directory, folder)
        if link:
            raise ConfigurationError(f"'{link}' is a symbolic link, but results stay inside --output: remove the link")
        entries = list[os.DirEntry[str]]()
        with as_output_error(f"write to '{directory / folder}'"), suppress(FileNotFoundError):
            entries = list(os.scandir(directory / folder))
        for entry in entries:
            path = folder / entry.name
            origin = parse_result_name(path)
            if origin and origin[0].name in names and is_result(path) and directory / path not in own_files:
                yield directory / path


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

    def __init__(self, directory: Path, overwrite: bool) -> None:
        self.directory = directory
        self._overwrite = overwrite
        self._own_files = OwnFiles(directory)

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
    def _history(self) -> History:
        return History.read(self.directory)

    def has_finished(self, source: Source, configuration: str) -> bool:
        return self._history.is_finished(self.directory, source, configuration)

    def refuse(
        self, sources: Sequence[Source], accepts: IsImage, is_result: IsResult, extra_files: Iterable[Path]
    ) -> None:
        by_relpath: dict[Path, Source] = {}
        for source in sources:
            relpath = source.relpath
            other = by_relpath.get(relpath)
            by_relpath[relpath] = source
            if other is not None and accepts(other) and accepts(source):
                raise ConfigurationError(
                    f"'{other.name}' and '{source.name}' would both be written to '{self.directory / relpath}': "
                    "explain them in two runs, each with an --output of its own"
                )
            if self._overwrite:
                continue
            before = self._history.other_input(source, relpath)
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
                self._check_replaceable(relative)
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = self.private / stored_name(relative)
                targets[temporary] = path
                temporary.write_bytes(content)
            path = self.directory / MARKER
            digests = [
                (sha256(content), str(relative))
                for relative, content in files.items()
                if relative not in recorded_paths
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
        link = first_link(self.directory, relative.parent)
        if link:
            raise OutputError(f"cannot write '{path}': '{link}' is a symbolic link")
        if not self._overwrite and lexists(path) and path not in self._own_files:
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


@dataclass(frozen=True)
class History:
    """What earlier runs did in an output directory, according to its records.

    Attributes:
        outputs: each result file, relative to the directory, and the configuration that last wrote it.
        results: for each input's path below the directory and configuration: the input's state and the results.
        inputs: by their paths below the directory, the input that was last explained there, and its state.
    """

    outputs: dict[str, str] = field(default_factory=dict)
    results: dict[tuple[str, str], tuple[FileState, list[Result]]] = field(default_factory=dict)
    inputs: dict[str, tuple[str, FileState]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> History:
        """The history of a directory, which need not exist.

        Raises:
            OutputError: its records cannot be read.
        """
        history = cls()
        with as_output_error(f"read '{directory / RECORDS}'"), suppress(FileNotFoundError, NotADirectoryError):
            for record in read_records(directory):
                configuration = sys.intern(record.configuration)
                results = record.results
                key = (record.place, configuration)
                if record.status == "failed" or record.stamp is None:
                    history.results.pop(key, None)
                else:
                    history.results[key] = record.stamp, results
                    history.inputs[record.place] = record.input, record.stamp
                    history.outputs.update((result.path, configuration) for result in results)
        return history

    def is_finished(self, directory: Path, source: Source, configuration: str) -> bool:
        """Whether all results of a file exist, and were made from its present state with an equal configuration."""
        with suppress(OSError):
            # earlier, a file in a directory that the user named had a place as if its own path had been named
            for place in dict.fromkeys((source.relpath, output_relpath(source.path))):
                stamp, results = self.results.get((str(place), configuration), (None, []))
                if stamp is not None and stamp == source.stamp():
                    return all(
                        self.outputs[path] == configuration and (directory / path).stat().st_size == size
                        for path, size, _ in results
                    )
        return False

    def other_input(self, source: Source, relpath: Path) -> str | None:
        """Another input whose results stand at a file's place; None if there is none."""
        name, stamp = self.inputs.get(str(relpath), (source.name, None))
        if name == source.name or output_relpath(Path(name)) == output_relpath(source.path):
            return None
        with suppress(OSError):
            return None if stamp == source.stamp() else name  # the same file, named from somewhere else
        return None

"""The manifest of an output directory: what runs wrote there, for which inputs, with which settings and SHA-256."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from os.path import isfile, lexists
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ebcli.errors import as_output_error, reason
from ebcli.files.naming import MARKER, RECORDS, output_relpath, parse_result_name
from ebcli.files.paths import FileState, file_digest, first_link, safe_open
from ebcli.files.records import Record, Result, read_records, records_of_run

if TYPE_CHECKING:
    from ebcli.files.sources import Source

_DIGEST = re.compile(rb'"([0-9a-f]{64})"')
_AT_A_TIME = 1 << 25  # bytes; no line is longer


class _Finished(NamedTuple):
    """What an image was explained from, and its results."""

    stamp: FileState
    other_inputs: str
    results: list[Result]


class Results:
    """What runs wrote into an output directory.

        results = Results.read(directory)
        path in results  # whether this program wrote the file, whatever its name
        results.is_finished(source, configuration)

    Results are in the records with their SHA-256; all other files, such as pages and settings, are in the marker file.
    To tell whose a file is, both are read when first needed, and what other runs have added since when a file is not
    found. Everything else is known of the records that were passed to ``update``.

    Args:
        directory: the output directory, which need not exist.

    Attributes:
        files: the result files by their paths below the directory, each as it was last written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[str, Result] = {}
        # by the input's path below the directory and the configuration
        self._finished: dict[tuple[str, str], _Finished] = {}
        # by the input's path below the directory, the input that was last explained there
        self._inputs: dict[str, tuple[str, FileState]] = {}
        self._digests: set[bytes] = set()
        self._positions = {RECORDS: 0, MARKER: 0}  # what follows is not read yet

    @classmethod
    def read(cls, directory: Path) -> "Results":
        """What earlier runs recorded.

        Raises:
            OutputError: the records cannot be read.
        """
        results = cls(directory)
        with (
            as_output_error(f"read '{directory / RECORDS}'"),
            suppress(FileNotFoundError, NotADirectoryError),
        ):
            results.update(read_records(directory))
        return results

    def update(self, records: Iterable[Record]) -> None:
        """Add records, which are later than those before."""
        for record in records:
            key = (record.place, sys.intern(record.configuration))
            if record.status == "failed" or record.stamp is None:
                self._finished.pop(key, None)
                continue
            results = record.results
            self._finished[key] = _Finished(record.stamp, record.other_inputs, results)
            self._inputs[record.place] = record.input, record.stamp
            self.files.update((result.path, result) for result in results)

    def __contains__(self, path: Path) -> bool:
        """Whether a file's content is that of one that this program wrote into the directory."""
        try:
            digest = file_digest(path).encode()
        except OSError:  # a link, or a directory
            return False
        if digest not in self._digests:
            for name in self._positions:
                with suppress(OSError):
                    self._read_digests(name)
        return digest in self._digests

    def _read_digests(self, name: str) -> None:
        position = self._positions[name]
        with safe_open(self.directory / name, follow=False) as file:
            file.seek(position)
            while (line := file.readline(_AT_A_TIME)).endswith(b"\n") or len(line) == _AT_A_TIME:
                position += len(line)
                self._digests.update(_DIGEST.findall(line))
        self._positions[name] = position

    def is_foreign(self, path: Path) -> bool:
        """Whether something is there that this program did not write."""
        return lexists(path) and path not in self

    def has(self, result: Result) -> bool:
        """Whether a result is there in its size, and nothing else was written to its path since."""
        if self.files.get(result.path) != result:
            return False
        with suppress(OSError):
            return (self.directory / result.path).stat().st_size == result.bytes
        return False

    def is_finished(
        self, source: "Source", configuration: str, other_inputs: Callable[[], str] = str
    ) -> bool:
        """Whether all results of a file exist, and were made from its present state with an equal configuration.

        Args:
            source: the file.
            configuration: a hash of the settings.
            other_inputs: returns a hash of what the network gets beside the image; empty for one input.
        """
        with suppress(OSError):
            # earlier, a file in a directory that the user named had a place as if its own path had been named
            for place in dict.fromkeys((source.relpath, output_relpath(source.path))):
                finished = self._finished.get((str(place), configuration))
                if finished is not None and finished.stamp == source.stamp():
                    return all(map(self.has, finished.results)) and finished.other_inputs == other_inputs()
        return False

    def other_input(self, source: "Source") -> str | None:
        """Another input whose results stand at a file's place; None if there is none."""
        name, stamp = self._inputs.get(str(source.relpath), (source.name, None))
        if name == source.name or output_relpath(Path(name)) == output_relpath(source.path):
            return None
        with suppress(OSError):
            return None if stamp == source.stamp() else name  # the same file, named from somewhere else
        return None

    def problem(self, result: Result) -> str | None:
        """What is wrong with a result: it is missing or altered; None if it is as it was written."""
        if first_link(self.directory, Path(result.path)):
            return "behind a symbolic link"
        path = self.directory / result.path
        try:
            is_intact = path.stat().st_size == result.bytes and file_digest(path) == result.sha256
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            return reason(error)
        return None if is_intact else "altered"


def verify(directory: Path) -> dict[Path, str | None]:
    """Every recorded result, relative to the directory, and its problem, see ``Results.problem``.

    Raises:
        ConfigurationError: the directory has no records.
    """
    results = Results(directory)
    results.update(records_of_run(directory))
    return {Path(path): results.problem(result) for path, result in results.files.items()}


class OwnResults:
    """The results of earlier runs, in whatever directories: ``path in OwnResults()``."""

    def __init__(self) -> None:
        self._results_in = cache(_results_in)

    def __contains__(self, path: Path) -> bool:
        if parse_result_name(path) is None:
            return False
        folders = Path(os.path.abspath(path)).parents  # noqa: PTH100 - links stay links
        return any(path in (self._results_in(folder) or ()) for folder in folders)


def _results_in(folder: Path) -> Results | None:
    """The results in an output directory; None for other directories."""
    if isfile(folder / RECORDS) or isfile(folder / MARKER):
        return Results(folder)
    return None

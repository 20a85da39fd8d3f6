"""Which files in an output directory this program wrote: those whose SHA-256 is recorded there."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ebcli.files.naming import MARKER, RECORDS, parse_result_name
from ebcli.files.records import Result, records_of_run
from ebcli.files.safe_open import first_link, safe_open

_DIGEST = re.compile(rb'"([0-9a-f]{64})"')
_AT_A_TIME = 1 << 25  # bytes; no line is longer


class OwnFiles:
    """The files of an output directory that this program wrote.

        path in OwnFiles(directory)

    Results are in the records with their SHA-256; all other files, such as pages and settings, are in the marker file.
    Both are read when first needed, and what other runs have added since when a file is not found.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._digests: set[bytes] = set()
        self._read = {RECORDS: 0, MARKER: 0}

    def __contains__(self, path: Path) -> bool:
        """Whether a file's content is that of one that this program wrote into the directory."""
        try:
            digest = file_digest(path).encode()
        except OSError:  # a link, or a directory
            return False
        if digest not in self._digests:
            for name in self._read:
                with suppress(OSError):
                    self._update(name)
        return digest in self._digests

    def _update(self, name: str) -> None:
        position = self._read[name]
        with safe_open(self._directory / name, follow=False) as file:
            file.seek(position)
            while (line := file.readline(_AT_A_TIME)).endswith(b"\n") or len(line) == _AT_A_TIME:
                position += len(line)
                self._digests.update(_DIGEST.findall(line))
        self._read[name] = position


class OwnResults:
    """The results of earlier runs, in whatever directories: ``path in OwnResults()``."""

    def __init__(self) -> None:
        self._directories: dict[Path, OwnFiles | None] = {}

    def __contains__(self, path: Path) -> bool:
        return parse_result_name(path) is not None and any(path in own for own in self._around(path))

    def _around(self, path: Path) -> Iterator[OwnFiles]:
        for folder in Path(os.path.abspath(path)).parents:  # noqa: PTH100 - links stay links
            if folder not in self._directories:
                is_output = any(os.path.isfile(folder / name) for name in (RECORDS, MARKER))
                self._directories[folder] = OwnFiles(folder) if is_output else None
            if (own := self._directories[folder]) is not None:
                yield own


def file_digest(path: Path, *, follow: bool = False) -> str:
    """The SHA-256 of a regular file. Raises OSError for other files, and for links unless they are followed."""
    digest = hashlib.sha256()
    with safe_open(path, follow=follow) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Verification(NamedTuple):
    """What a check of an output directory found.

    Attributes:
        results: the number of recorded results.
        problems: the results that are missing or altered, relative to the directory, and what is wrong with each.
    """

    results: int
    problems: dict[Path, str]


def verify(directory: Path) -> Verification:
    """Check that every recorded result exists and is as the last run that wrote it left it.

    Raises:
        ConfigurationError: the directory has no records.
    """
    expected = {result.path: result for record in records_of_run(directory) for result in record.results}
    checked = {Path(result.path): _problem(directory, result) for result in expected.values()}
    return Verification(len(expected), {path: problem for path, problem in checked.items() if problem})


def _problem(directory: Path, result: Result) -> str | None:
    if first_link(directory, Path(result.path)):
        return "behind a symbolic link"
    path = directory / result.path
    try:
        is_intact = path.stat().st_size == result.bytes and file_digest(path) == result.sha256
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)
    return None if is_intact else "altered"

"""Checks the results in an output directory against its records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.directory import first_link
from ebcli.files.naming import RECORDS
from ebcli.files.records import Result, read_records
from ebcli.files.regular import open_regular


@dataclass(frozen=True)
class Verification:
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
    try:
        expected = {result.path: result for record in read_records(directory) for result in record.results}
    except OSError as error:
        raise ConfigurationError(
            f"cannot read '{directory / RECORDS}' ({error.strerror}): name the --output directory of a run"
        ) from error
    checked = {Path(result.path): _problem(directory, result) for result in expected.values()}
    return Verification(len(expected), {path: problem for path, problem in checked.items() if problem})


def _problem(directory: Path, result: Result) -> str | None:
    if first_link(directory, Path(result.path)):
        return "behind a symbolic link"
    try:
        with open_regular(directory / result.path, follow=False) as file:
            found, sha256 = 0, hashlib.sha256()
            while chunk := file.read(1 << 20):
                found += len(chunk)
                sha256.update(chunk)
                if found > result.bytes:
                    break
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)
    return None if sha256.hexdigest() == result.sha256 else "altered"

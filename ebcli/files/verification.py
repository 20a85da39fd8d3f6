"""Checks the results in an output directory against its records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.directory import first_link
from ebcli.files.history import read_records
from ebcli.files.naming import RECORDS
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

    Results are compared by their SHA-256, or by their size if the record is of a version that stored no checksums.

    Raises:
        ConfigurationError: the directory has no records.
    """
    expected: dict[str, tuple[int, str | None]] = {}
    try:
        for record in read_records(directory):
            expected.update((relpath, (size, digest)) for relpath, size, digest in record.results)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read '{directory / RECORDS}' ({error.strerror}): name the --output directory of a run"
        ) from error
    checked = {Path(relpath): _problem(directory, Path(relpath), *facts) for relpath, facts in expected.items()}
    return Verification(len(expected), {relpath: problem for relpath, problem in checked.items() if problem})


def _problem(directory: Path, relpath: Path, size: int, digest: str | None) -> str | None:
    if first_link(directory, relpath):
        return "behind a symbolic link"
    try:
        with open_regular(directory / relpath, follow=False) as file:
            found, sha256 = 0, hashlib.sha256()
            while chunk := file.read(1 << 20):
                found += len(chunk)
                sha256.update(chunk)
                if found > size:
                    break
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)
    return None if found == size and digest in (None, sha256.hexdigest()) else "altered"

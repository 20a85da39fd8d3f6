"""Checks the results in an output directory against its records."""

from dataclasses import dataclass
from pathlib import Path

from ebcli.files.ownership import file_digest
from ebcli.files.records import Result, records_of_run
from ebcli.files.safe_open import first_link


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

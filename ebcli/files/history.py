"""What earlier runs did in an output directory."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ebcli.errors import OutputError
from ebcli.files.naming import RECORDS, output_relpath
from ebcli.files.records import Result, read_records
from ebcli.files.sources import Source
from ebcli.files.stamp import Stamp


@dataclass(frozen=True)
class History:
    """What earlier runs did in an output directory, according to its records.

    Attributes:
        written: each result file, relative to the directory, and the configuration that last wrote it.
        finished: for each input's path below the directory and configuration: the input's state and the results.
    """

    written: dict[str, str] = field(default_factory=dict)
    finished: dict[tuple[str, str], tuple[Stamp, list[Result]]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> History:
        """The history of a directory, which need not exist.

        Raises:
            OutputError: its records cannot be read.
        """
        history, collects = cls(), gc.isenabled()
        gc.disable()  # it would look through all that is read, again and again
        try:
            for record in read_records(directory):
                configuration, results = sys.intern(record.configuration), record.results
                key = record.place, configuration
                if record.status == "failed" or record.stamp is None:
                    history.finished.pop(key, None)
                else:
                    history.finished[key] = record.stamp, results
                    history.written.update((result.path, configuration) for result in results)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise OutputError(f"cannot read '{directory / RECORDS}': {error.strerror or error}") from error
        finally:
            if collects:
                gc.enable()
        return history

    def is_finished(self, directory: Path, source: Source, configuration: str) -> bool:
        """Whether all results of a file exist, and were made from its present state with an equal configuration."""
        stamp, results = self.finished.get((str(output_relpath(source.path)), configuration), (None, []))
        try:
            return stamp == source.stamp() and all(
                self.written[path] == configuration and (directory / path).stat().st_size == size
                for path, size, _ in results
            )
        except OSError:
            return False

"""What earlier runs did in an output directory."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ebcli.errors import OutputError
from ebcli.files.naming import RECORDS, output_relpath
from ebcli.files.records import Result, read_records
from ebcli.files.stamp import Stamp

if TYPE_CHECKING:
    from ebcli.files.sources import Source


@dataclass(frozen=True)
class History:
    """What earlier runs did in an output directory, according to its records.

    Attributes:
        written: each result file, relative to the directory, and the configuration that last wrote it.
        finished: for each input's path below the directory and configuration: the input's state and the results.
        inputs: by their paths below the directory, the input that was last explained there, and its state.
    """

    written: dict[str, str] = field(default_factory=dict)
    finished: dict[tuple[str, str], tuple[Stamp, list[Result]]] = field(default_factory=dict)
    inputs: dict[str, tuple[str, Stamp]] = field(default_factory=dict)

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
                    history.inputs[record.place] = record.input, record.stamp
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
        with suppress(OSError):
            # earlier, a file in a directory that the user named had a place as if its own path had been named
            for place in dict.fromkeys((source.place, output_relpath(source.path))):
                stamp, results = self.finished.get((str(place), configuration), (None, []))
                if stamp is not None and stamp == source.stamp():
                    return all(
                        self.written[path] == configuration and (directory / path).stat().st_size == size
                        for path, size, _ in results
                    )
        return False

    def other_input(self, source: Source, place: Path) -> str | None:
        """Another input whose results stand at a file's place; None if there is none."""
        known = self.inputs.get(str(place))
        if known is None or known[0] == source.name or output_relpath(Path(known[0])) == output_relpath(source.path):
            return None
        with suppress(OSError):
            return None if known[1] == source.stamp() else known[0]  # the same file, named from somewhere else
        return None

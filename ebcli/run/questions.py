"""The questions of a run about its photos, and the answers that exist already. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ebcli.datatypes.query import Query
from ebcli.errors import ConfigurationError
from ebcli.files.sources import Source
from ebcli.models.classes import is_heading, read_class_names, read_rows
from ebcli.run.photo_tables import match_rows
from ebcli.run.plan_parts import InputOptions, WordOptions

_QUESTION = "question"
_ANSWER = "answer"


class QueriesOfPhoto(NamedTuple):
    """What a table asks about a photo: the number of its first line, counted from 1, and the queries."""

    line: int
    queries: list[Query]


def with_queries(
    sources: Sequence[Source], words: WordOptions, inputs: InputOptions, accepts: Callable[[Source], bool]
) -> list[Source]:
    """Each photo once for each query about it; without the photos that a table of questions or answers lacks.

    Args:
        sources: the photos, and perhaps other files.
        words: the questions and answers, or their files.
        inputs: which part of all photos these are.
        accepts: whether a file is worked on.

    Raises:
        ConfigurationError: a file cannot be read, or names none of the photos.
    """
    file = words.table
    if file is not None:
        table = read_queries(file, words)
        rows = match_rows(sources, table, file, "row", accepts, is_all=inputs.shard is None)
        pairs = zip(sources, rows, strict=True)
        return [replace(source, query=query) for source, row in pairs if row for query in row.queries]
    queries = [Query(words.question, words.answer)]
    if words.questions is not None:
        questions = read_class_names(words.questions, "questions")
        queries = [Query(question, words.answer) for question in dict.fromkeys(questions)]
    asked_sources = []
    for source in sources:
        count = len(queries) if accepts(source) else 1
        asked_sources += [replace(source, query=query) for query in queries[:count]]
    return asked_sources


def read_queries(path: Path, words: WordOptions) -> dict[tuple[str, ...], QueriesOfPhoto]:
    """The queries of a CSV file by the parts of the photos' paths; a photo may have several rows.

    Without a heading, its columns are photo and question, or photo and answer if `words` asks for answers. A heading
    can also name all three.

    Raises:
        ConfigurationError: the file cannot be read, or a row lacks something.
    """
    column = _QUESTION if words.answers is None else _ANSWER
    columns = ["photo", column]
    table: dict[tuple[str, ...], QueriesOfPhoto] = {}
    for number, (line, row) in enumerate(read_rows(path, f"{column}s")):
        if number == 0 and is_heading(row):
            columns = _columns(path, row, column)
            continue
        cells = dict(zip(columns, map(str.strip, row), strict=False))
        if len(row) != len(columns) or not cells[column]:
            problem = f"{path}, line {line}: {','.join(row)!r} must be {', '.join(columns)}"
            raise ConfigurationError(f"{problem}; put a text with commas in quotation marks")
        query = Query(cells.get(_QUESTION, words.question), cells.get(_ANSWER, words.answer))
        queries = table.setdefault(Path(cells["photo"]).parts, QueriesOfPhoto(line, [])).queries
        if query not in queries:
            queries.append(query)
    return table


def _columns(path: Path, heading: Sequence[str], column: str) -> list[str]:
    """The columns of a table by its heading. Raises ConfigurationError if it lacks one, or has others."""
    columns = ["photo", *(cell.strip().lower() for cell in heading[1:])]
    if column not in columns or not set(columns[1:]) <= {_QUESTION, _ANSWER}:
        problem = f"the heading of '{path}' is {','.join(heading)!r}"
        raise ConfigurationError(f"{problem}: name the columns photo,question,answer, or two of them")
    return columns

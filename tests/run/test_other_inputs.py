"""Finished results of a network that reads a table beside each photo: they are kept as long as the table's row is."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from ebcli.cli.saliency import main
from ebcli.files.records import Record, read_records

FACTORY = """
import json
from pathlib import Path

import torch
import ebcli
from several_inputs import RedAndTable

class Own(RedAndTable):
    preprocessing = ebcli.Preprocessing(resize=12, crop=12, mean=0, std=1)

    def other_inputs(self, path):
        if path is None:
            return torch.zeros(3)
        return torch.tensor(json.loads(Path("table.json").read_text())[Path(path).name])
"""
TABLE = {"blue.png": [0.5, 0.2, 0.1], "red.png": [0.0, 0.2, 0.0]}
RUN = (
    "photos",
    "--model",
    "own.py:Own",
    "--layer",
    "act",
    "--target",
    "0",
    "-o",
    "maps",
    "--raw",
    "--workers",
    "0",
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(FACTORY)
    Path("photos").mkdir()
    for name in TABLE:
        Image.new("RGB", (12, 12), name.removesuffix(".png")).save(Path("photos", name))
    write(TABLE)


def write(table: dict[str, Any]) -> None:
    Path("table.json").write_text(json.dumps(table))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


def explained(*options: str) -> list[str]:
    """The photos that a run explains."""
    before = len([*read_records(Path("maps"))]) if Path("maps").exists() else 0
    result = invoke(*RUN, "--skip-existing", *options)
    assert result.exit_code == 0, result.output
    return [Path(record.input).name for record in [*read_records(Path("maps"))][before:]]


def test_only_photos_whose_row_changed_are_explained_again() -> None:
    assert explained() == ["blue.png", "red.png"]
    assert explained() == []
    write({**TABLE, "red.png": [0.0, 0.3, 0.0]})
    assert explained() == ["red.png"]
    assert explained() == []
    write(TABLE)
    assert explained() == ["red.png"]  # its results are those of the other row
    records = [*read_records(Path("maps"))]
    assert records[1].other_inputs == records[-1].other_inputs != records[2].other_inputs
    assert len({record.configuration for record in records}) == 1


def test_a_row_that_is_gone_fails() -> None:
    explained()
    write({"blue.png": TABLE["blue.png"]})
    result = invoke(*RUN, "--skip-existing")
    assert result.exit_code == 1
    assert "red.png: other_inputs() failed (KeyError: 'red.png')" in result.stderr
    assert [record.status for record in read_records(Path("maps"))] == ["done", "done", "failed"]


def test_check_notices_another_row_whose_maps_are_alike() -> None:
    explained()
    result = invoke("check", "maps")
    assert result.exit_code == 0, result.output
    write({**TABLE, "blue.png": [0.5, 0.2, 0.10001]})
    result = invoke("check", "maps")
    assert result.exit_code == 1
    expected = "blue.png: the network got other inputs beside it than in the baseline\n"
    assert result.stdout.endswith(expected)
    assert result.stdout.count("\n") == 1


def test_records_of_earlier_versions_are_read() -> None:
    explained()
    lines = Path("maps/records.jsonl").read_text().splitlines()
    values = json.loads(lines[0])
    del values["other_inputs"]
    record = Record.parse(json.dumps(values).encode())
    assert record is not None
    assert record.other_inputs == ""

"""Which variables of the environment a command reads, and that it says so."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import click
import pytest
from click.testing import CliRunner
from option_values import HOSTILE, VALUES

from ebcli.cli.benchmark import benchmark
from ebcli.cli.saliency import main, run

COMMANDS = {name: command for name, command in main.commands.items() if command is not benchmark}
OF_EARLIER_RUNS = {"audit", "check", "compare", "report", "verify"}
OF_BENCHMARK = [f"benchmark {name}" for name in benchmark.commands]


def read_by(words: list[str], arguments: int, environment: dict[str, str]) -> str:
    """What a command line says of the environment; whatever it then does fails."""
    with mock.patch("ebcli.cli.doctor.examine", return_value=[]):
        result = CliRunner().invoke(main, [*words, *["nothing"] * arguments, "--verbose"], env=environment)
    told = [line for line in result.stderr.splitlines() if line.startswith("Read from the environment: ")]
    assert len(told) == 1, result.stderr
    return told[0].partition(": ")[2]


@pytest.mark.parametrize("name", [*COMMANDS, *OF_BENCHMARK])
def test_every_command_names_the_variables_that_it_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nothing").mkdir()
    words, command = name.split(), COMMANDS.get(name) or benchmark.commands[name.split()[1]]
    prefix = "_".join(["EB_SALIENCY", *map(str.upper, words)]) if " " in name else "EB_SALIENCY"
    options = [one.name or "" for one in command.params if isinstance(one, click.Option)]
    own = {
        f"{prefix}_{one.upper()}": VALUES[one][0]
        for one in options
        if one in VALUES and one not in ("annotations", "labels")
    }
    if "model" in options:
        own[f"{prefix}_MODEL"] = "nothing"  # which takes no time
    if "output" in options:
        own[f"{prefix}_OUTPUT"] = "nothing"
    arguments = sum(isinstance(one, click.Argument) for one in command.params)
    needed = ["--model", "nothing"] * (name == "ask")
    environment = own | (HOSTILE if name in OF_EARLIER_RUNS else {})
    expected = (
        set()
        if name in OF_EARLIER_RUNS
        else own.keys() - {"EB_SALIENCY_MODEL"}
        if name == "ask"
        else own.keys()
    )
    said = read_by([*words, *needed], arguments, environment)
    assert set(said.split(", ")) == (expected or {"nothing"})


def test_a_run_names_them_too_and_without_verbose_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"EB_SALIENCY_TOP_K": "3", "EB_SALIENCY_TIMEOUT": "2", "EB_SALIENCY_UNKNOWN": "1"}
    assert read_by([], 1, environment) == "EB_SALIENCY_TOP_K, EB_SALIENCY_TIMEOUT"
    assert read_by(["--top-k", "2"], 1, environment) == "EB_SALIENCY_TIMEOUT"
    assert "environment" not in CliRunner().invoke(run, ["nothing"], env=environment).stderr

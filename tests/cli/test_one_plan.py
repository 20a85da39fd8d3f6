"""A plan is the same whichever way it is told: by values, the environment, settings, or a command line."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
from click.testing import CliRunner
from option_values import HOSTILE, VALUES
from plans import command_plan

from ebcli.cli.click_types import PATH
from ebcli.cli.commands import plan_of
from ebcli.cli.options import OPTIONS, option
from ebcli.cli.saliency import main, run
from ebcli.datatypes.explanation import Box
from ebcli.errors import ConfigurationError
from ebcli.run.plan import VALUES as NAMES
from ebcli.run.plan import RunPlan, as_command, as_settings

NEEDED: dict[str, dict[str, Any]] = {
    "compare_with": {"panel": True},
    "gpus_per_worker": {"engine": "ray"},
    "only": {"labels": Path("labels.csv")},
}
COMBINED: dict[str, dict[str, Any]] = {
    "texts": {"model": "clip/x", "target": ("a cat", "7", "a cat"), "against": ("a dog",)},
    "texts of a file": {"model": "clip/x", "class_names": Path(__file__), "target": ("7",)},
    "pictures": {"similar_to": (Path("b.png"), Path("7")), "against": ("c.png",), "signed": False},
    "against, unsigned": {"against": ("tabby",), "signed": False},
    "signed by hand": {"signed": True, "scale": "3"},
    "above a lower end": {"against": ("tabby",), "scale": "0.25,run"},
    "an atlas": {"style": "atlas"},
    "an atlas of the photo's classes": {"style": "atlas", "candidates": "photo"},
    "classes of a file": {"candidates": Path(__file__)},
    "classes of a file named like a choice": {"candidates": Path("windows")},
    "a box": {"where": Box(4.0, 3.0, 24.5, 13.0)},
    "whole and cropped": {"fit": "whole", "crop": 96},
    "strange names": {
        "images": (Path("-a.jpg"), Path("models"), Path('no\x7f"such')),
        "target": ("-x", "it's"),
    },
}


@pytest.fixture
def executed(working_directory: Path) -> Iterator[mock.Mock]:
    """What is done with the plan of a command line."""
    with mock.patch("ebcli.cli.saliency.execute", return_value=0) as execute:
        yield execute


def test_paths_of_python_3_13_are_paths() -> None:
    """There, pathlib's classes say that they are of the module ``pathlib._local``."""
    path = type("Path", (), {"__module__": "pathlib._local"})
    (field,) = dataclasses.fields(dataclasses.make_dataclass("Plan", [("here", path | None, None)]))
    with mock.patch.dict("ebcli.cli.options.FIELDS", {"here": field}):
        assert option("Output", "--here", "").type is PATH


def test_every_value_is_an_option_and_in_the_table() -> None:
    assert set(VALUES) == NAMES - {"images"} == OPTIONS.keys() & NAMES
    options = [one for one in run.params if isinstance(one, click.Option)]
    assert all(one.help for one in options)


@pytest.mark.parametrize("name", VALUES)
def test_the_environment_sets_every_option(name: str, executed: mock.Mock) -> None:
    needed = NEEDED.get(name, {})
    words = [
        word for option, value in needed.items() for word in ([f"--{option}"] + [value] * (value is not True))
    ]
    variable = f"EB_SALIENCY_{name.upper()}"
    result = CliRunner().invoke(main, ["a.jpg", *words], env={variable: VALUES[name][0]})
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = {name: VALUES[name][1]}
    also: dict[str, Any] = {
        "similar_to": {"target": ("0", "1")},
        "against": {"signed": True},
        "at": {"style": "atlas", "candidates": "windows", "panel": True},
    }
    value = {"vmin": 0.5, "percentile": 99.0} if name == "scale" else value | also.get(name, {})
    assert executed.call_args.args[0] == command_plan("a.jpg", **value, **needed)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("given", [*VALUES, *COMBINED])
def test_a_plan_is_told_as_settings_and_as_a_command_line(
    given: str, executed: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an environment that sets every option otherwise."""
    for variable, text in HOSTILE.items():
        monkeypatch.setenv(variable, text)
    value = COMBINED.get(given) or {given: VALUES[given][1], **NEEDED.get(given, {})}
    plan = RunPlan.from_values(**{"images": (Path("a.jpg"),), **value})
    assert RunPlan.from_values(**plan.values) == plan
    Path("windows").touch()
    Path("settings.toml").write_text(as_settings(plan))
    with click.Context(run):
        again = plan_of(Path())
    assert again == plan
    environment: dict[str, str | None] = dict(os.environ)
    words = shlex.split(as_command(again))
    while (word := words.pop(0)) != "eb-saliency":
        name, equals, text = (words.pop(0) if word == "-u" else word).partition("=")
        if word != "env":
            environment[name] = text if equals else None
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == 0, result.output
    assert executed.call_args.args[0] == plan


def test_a_command_line_says_no_more_than_is_needed() -> None:
    def told(**values: Any) -> str:
        return as_command(RunPlan.from_values(images=(Path("a.jpg"),), **values), {})

    assert told() == "eb-saliency a.jpg"
    assert told(against=("tabby",), signed=True, fit="whole") == "eb-saliency a.jpg --against tabby"
    assert told(against=("tabby",), signed=False) == "eb-saliency a.jpg --against tabby --unsigned"
    assert told(timeout=5.0) == "env EB_SALIENCY_TIMEOUT=5.0 eb-saliency a.jpg"


def test_two_ways_to_choose_the_classes_exclude_each_other() -> None:
    with pytest.raises(
        ConfigurationError, match="--target and --top-k both choose the classes: drop one of them"
    ):
        RunPlan.from_values(images=(Path("a.jpg"),), target=("tabby",), top_k=2)

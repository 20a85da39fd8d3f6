"""The command itself: help, what it imports, and a run that is killed for good."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from color_net import colour_photos, load_colours
from runs import until
from stub_run import heavy_imports, run_python

from ebcli.cli.benchmark import main
from ebcli.evaluate import __all__ as exported

TESTS = ("pointing", "grid", "deletion", "insertion", "sanity", "localize")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["grid", "--help"], ["grid", "nowhere"]])
def test_what_needs_no_network_does_not_import_torch(arguments: list[str]) -> None:
    assert heavy_imports("ebcli.cli.benchmark", arguments) == "imported: []"


def test_metrics_need_no_torch() -> None:
    printed = run_python("import sys\nfrom ebcli.evaluate import pointing_hit\nprint('torch' in sys.modules)")
    assert printed == "False\n"


def test_everything_exported_is_there() -> None:
    import ebcli.evaluate

    for name in exported:
        assert callable(getattr(ebcli.evaluate, name))
        assert name in dir(ebcli.evaluate)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ebcli.evaluate.nothing  # noqa: B018


def test_every_option_is_documented_and_every_test_has_the_common_ones() -> None:
    assert set(main.commands) == set(TESTS)
    for command in main.commands.values():
        assert isinstance(command, click.Command) and command.help
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        assert all(option.help for option in options)
        names = {name for option in options for name in option.opts}
        assert {"--model", "--weights", "--layer", "--method", "--json", "--limit", "--output"} <= names


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "guess"), "'guess' is not one of 'contrastive'"),
        (("--layer", "layer3"), "no layer 'layer3'"),
        (("--layer", "5"), "layer '5' of colours has no map"),
        (("--steps", "0"), "0 is not in the range x>=1"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    colour_photos(tmp_path / "photos", 1)
    common = ("deletion", str(tmp_path / "photos"), "--model", "colours", "-o", str(tmp_path / "kept"))
    result = CliRunner().invoke(main, (*common, *arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "kept").exists()


def test_wrong_models_and_weights(tmp_path: Path) -> None:
    colour_photos(tmp_path / "photos", 1)
    for arguments, message in (
        (("--model", "vgg61"), "there is no model 'vgg61': did you mean "),
        (("--device", "abacus"), "device 'abacus' cannot be used here"),
        (("--model", "vgg16", "--weights", "mine.pth"), "'mine.pth' is neither a file nor weights of vgg16"),
    ):
        result = CliRunner().invoke(main, ("sanity", str(tmp_path / "photos"), *arguments))
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {message}")


def _command(arguments: tuple[str, ...], out: Path, waits: bool) -> None:
    """In a process of its own; one that waits does so in the middle."""
    from ebcli.evaluate import subject

    subject.load_model = load_colours  # type: ignore[assignment]
    explain = subject.ModelUnderTest.explain

    def explained(
        self: subject.ModelUnderTest, inputs: object, classes: object, seed: str, net: object = None
    ) -> object:
        if waits and seed == "3.png":
            signal.pause()
        return explain(self, inputs, classes, seed, net)  # type: ignore[arg-type]

    subject.ModelUnderTest.explain = explained  # type: ignore[method-assign, assignment]
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    main(arguments)


def test_a_killed_command_goes_on_and_says_what_an_uninterrupted_one_says(tmp_path: Path) -> None:
    colour_photos(tmp_path / "photos", 6)
    methods = ("--method", "contrastive", "--method", "random")
    arguments = (
        "deletion",
        str(tmp_path / "photos"),
        "--model",
        "colours",
        "--weights",
        "none",
        "--layer",
        "0",
        *methods,
    )
    context = multiprocessing.get_context("forkserver")

    def start(kept: str, waits: bool = False) -> multiprocessing.process.BaseProcess:
        process = context.Process(
            target=_command, args=((*arguments, "-o", str(tmp_path / kept)), tmp_path / f"{kept}.out", waits)
        )
        process.start()
        return process

    killed = start("killed", waits=True)
    until(lambda: any(path.read_text().count('"unit"') == 3 for path in (tmp_path / "killed").glob("*")))
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert (tmp_path / "killed.out").read_text() == ""
    for kept in ("killed", "whole"):
        process = start(kept)
        process.join(timeout=120)
        assert process.exitcode == 0
    printed = (tmp_path / "whole.out").read_text()
    assert printed.startswith("| method")
    assert (tmp_path / "killed.out").read_text() == printed
    (file,) = (tmp_path / "killed").iterdir()
    assert file.read_text().count('"unit"') == 6  # none was measured twice

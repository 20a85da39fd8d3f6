"""The command eb-saliency benchmark: help, imports, errors, and a run that is killed."""

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from color_net import color_images, load_colors
from runs import until
from stub_run import heavy_imports, run_python

from ebcli.cli.benchmark import benchmark as main
from ebcli.evaluate import __all__ as exported

TESTS = ("pointing", "grid", "naming", "deletion", "insertion", "sanity", "localize")


@pytest.mark.parametrize("arguments", [["--help"], ["grid", "--help"], ["grid", "nowhere"]])
def test_torch_is_not_imported_without_a_network(arguments: list[str]) -> None:
    assert heavy_imports("ebcli.cli.saliency", ["benchmark", *arguments]) == "imported: []"


def test_metrics_need_no_torch() -> None:
    printed = run_python("import sys\nfrom ebcli.evaluate import pointing_hit\nprint('torch' in sys.modules)")
    assert printed == "False\n"


def test_everything_exported_exists() -> None:
    import ebcli.evaluate

    for name in exported:
        assert callable(getattr(ebcli.evaluate, name))
        assert name in dir(ebcli.evaluate)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ebcli.evaluate.nothing  # noqa: B018


def test_every_option_is_documented_and_every_command_has_the_common_ones() -> None:
    assert set(main.commands) == set(TESTS)
    for command in main.commands.values():
        assert isinstance(command, click.Command) and command.help
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        assert all(option.help for option in options)
        names = {name for option in options for name in option.opts}
        assert {"--model", "--weights", "--layer", "--method", "--json", "--limit", "--output"} <= names


@pytest.mark.usefixtures("colors")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "guess"), "there is no method 'guess': choose one of contrastive"),
        (("--layer", "layer3"), "no layer 'layer3'"),
        (("--layer", "5"), "layer '5' of colors has no map"),
        (("--steps", "0"), "0 is not in the range x>=1"),
    ],
)
def test_wrong_options_are_reported_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    color_images(tmp_path / "photos", 1)
    common = ("deletion", str(tmp_path / "photos"), "--model", "colors", "-o", str(tmp_path / "kept"))
    result = CliRunner().invoke(main, (*common, *arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "kept").exists()


def test_wrong_models_and_weights(tmp_path: Path) -> None:
    color_images(tmp_path / "photos", 1)
    for arguments, message in (
        (("--model", "vgg61"), "unknown model 'vgg61': did you mean "),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("--model", "vgg16", "--weights", "mine.pth"), "'mine.pth' is neither a file nor weights of vgg16"),
    ):
        result = CliRunner().invoke(main, ("sanity", str(tmp_path / "photos"), *arguments))
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {message}")


def measured(folder: Path, kept: Path, *arguments: str) -> str:
    """What a benchmark of images prints, as JSON; each call may resume the ones before."""
    network = ("--model", "colors", "--weights", "none", "--layer", "0", "-o", str(kept), "--json")
    command, *options = arguments
    result = CliRunner().invoke(main, (command, str(folder), *network, *options))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.usefixtures("colors")
def test_another_seed_takes_another_sample(tmp_path: Path) -> None:
    color_images(tmp_path / "photos", 9)
    kept, samples = tmp_path / "kept", list[set[str]]()
    for seed in ("0", "1", "0"):
        measured(tmp_path / "photos", kept, "deletion", "--limit", "3", "--seed", seed, "--steps", "2")
        (path,) = kept.iterdir()
        samples.append(
            {line["unit"] for line in map(json.loads, path.read_text().splitlines()) if "unit" in line}
        )
    assert len(samples[0]) == 3
    assert samples[0] < samples[1] == samples[2]


@pytest.mark.usefixtures("colors")
@pytest.mark.parametrize("command", ["deletion", "insertion"])
def test_measurements_of_other_steps_are_not_taken_for_these(tmp_path: Path, command: str) -> None:
    color_images(tmp_path / "photos", 1)
    areas = []
    for steps in ("8", "2", "1", "8"):
        printed = measured(
            tmp_path / "photos", tmp_path / "kept", command, "--steps", steps, "--baseline", "mean"
        )
        areas.append(round(json.loads(printed)["area"], 4))
    assert areas[0] == areas[3]
    assert len(set(areas)) == 3


def _stopped(arguments: tuple[str, ...]) -> None:
    """Runs in its own process, and stops at the fourth image."""
    from ebcli.evaluate import benchmark

    benchmark.load_model = load_colors  # type: ignore[assignment]
    explain = benchmark.ModelUnderTest.explain

    def explained(self: Any, inputs: Any, classes: Any, seed: str, net: Any = None) -> Any:
        if seed == "3.png":
            signal.pause()
        return explain(self, inputs, classes, seed, net)

    benchmark.ModelUnderTest.explain = explained  # type: ignore[method-assign]
    main(arguments)


@pytest.mark.release
@pytest.mark.usefixtures("colors")
def test_a_killed_command_resumes_with_the_same_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    color_images(tmp_path / "photos", 6)
    methods = ("--method", "contrastive", "--method", "random")
    network = ("--model", "colors", "--weights", "none", "--layer", "0")
    arguments = ("deletion", str(tmp_path / "photos"), *network, *methods, "-o")
    killed = multiprocessing.get_context("forkserver").Process(
        target=_stopped, args=((*arguments, str(tmp_path / "killed")),)
    )
    killed.start()
    until(lambda: any(path.read_text().count('"unit"') == 3 for path in (tmp_path / "killed").glob("*")))
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert capfd.readouterr().out == ""
    (file,) = (tmp_path / "killed").iterdir()
    with file.open("ab") as end:
        end.write(b'{"un')  # as if killed while writing
    resumed, whole = (
        CliRunner().invoke(main, (*arguments, str(tmp_path / name))) for name in ("killed", "whole")
    )
    assert (resumed.exit_code, whole.exit_code) == (0, 0)
    assert resumed.stdout == whole.stdout
    assert whole.stdout.startswith("| method")
    assert file.read_text().count('"unit"') == 6  # no image was measured twice

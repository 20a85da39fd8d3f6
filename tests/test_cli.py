"""The command line: which plan it makes, what it prints where, and how it ends. Loads no model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click
import pytest
from click.testing import CliRunner, Result

from ebcli.cli import main
from ebcli.errors import ConfigurationError, OutputError
from ebcli.plan import RunPlan
from ebcli.run import ClassMap, ImageResult, Run

SHOWN = ClassMap(282, "tiger cat", 0.5, 0.75, Path("saliency/a.jpg.282-tiger-cat.png"), blank=False)


@pytest.fixture
def worker() -> Iterator[mock.Mock]:
    with mock.patch("ebcli.run.run", autospec=True) as patched:
        patched.return_value = finished(ImageResult(Path("a.jpg"), (SHOWN,)))
        yield patched


def finished(*results: ImageResult) -> Run:
    return Run("vgg16", "none", "features.23", "cpu", len(results), iter(results))


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("a.jpg", {}),
        ("--model vgg16 --layer features.23 a.jpg", {"model": "vgg16", "layer": "features.23"}),
        ("--weights none a.jpg", {"weights": "none"}),
        ("--marginal a.jpg", {"contrastive": False}),
        ("--contrastive a.jpg", {"contrastive": True}),
        ("--target 281 --target tabby a.jpg", {"targets": ("281", "tabby")}),
        ("--top-k 3 a.jpg", {"top_k": 3}),
        ("-o maps a.jpg", {"output": Path("maps")}),
        ("--output maps a.jpg", {"output": Path("maps")}),
        ("--cmap viridis --alpha 0.25 a.jpg", {"cmap": "viridis", "alpha": 0.25}),
        ("--device cuda:1 a.jpg", {"device": "cuda:1"}),
        ("a.jpg photos", {"images": (Path("a.jpg"), Path("photos"))}),
        ("-- -a.jpg", {"images": (Path("-a.jpg"),)}),
    ],
)
def test_options_become_exactly_this_plan(arguments: str, expected: dict[str, object], worker: mock.Mock) -> None:
    result = invoke(*arguments.split())
    assert result.exit_code == 0, result.output
    assert worker.mock_calls == [mock.call(RunPlan(**{"images": (Path("a.jpg"),), **expected}))]  # type: ignore[arg-type]


OPTIONS = [parameter for parameter in main.params if isinstance(parameter, click.Option)]
VALUES = {
    "model": ("vgg16", "vgg16"),
    "weights": ("none", "none"),
    "layer": ("features.23", "features.23"),
    "contrastive": ("0", False),
    "targets": ("tabby;tiger cat", ("tabby", "tiger cat")),
    "top_k": ("4", 4),
    "output": ("maps", Path("maps")),
    "cmap": ("jet", "jet"),
    "alpha": ("0.5", 0.5),
    "device": ("cpu", "cpu"),
}


@pytest.mark.parametrize("field", VALUES)
def test_the_environment_sets_every_option_of_the_plan(field: str, worker: mock.Mock) -> None:
    text, value = VALUES[field]
    option = next(option for option in OPTIONS if option.name == field)
    variable = "EB_SALIENCY_" + max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
    result = invoke("a.jpg", **{variable: text})
    assert result.exit_code == 0, result.output
    assert worker.mock_calls == [mock.call(RunPlan(images=(Path("a.jpg"),), **{field: value}))]  # type: ignore[arg-type]


def test_every_field_of_the_plan_has_its_option_and_every_option_its_help() -> None:
    assert set(VALUES) == set(RunPlan.__dataclass_fields__) - {"images"}
    assert all(option.help for option in OPTIONS)
    shown = invoke("--help").output
    assert all(option.opts[0] in shown for option in OPTIONS)


def test_the_command_line_wins_over_the_environment(worker: mock.Mock) -> None:
    invoke("--top-k", "2", "a.jpg", EB_SALIENCY_TOP_K="4")
    assert worker.call_args.args[0].top_k == 2


def test_stdout_holds_the_paths_and_nothing_else(worker: mock.Mock) -> None:
    worker.return_value = finished(
        ImageResult(Path("a.jpg"), (SHOWN, SHOWN)),
        ImageResult(Path("bad.jpg"), error="it is broken"),
        ImageResult(Path("notes.txt"), skipped=True),
    )
    result = invoke("--verbose", "a.jpg")
    assert result.exit_code == 1
    assert result.stdout == f"{SHOWN.picture}\n" * 2
    for message in (
        "vgg16 (none), layer features.23, on cpu",
        "a.jpg: class 282 (tiger cat), probability 0.500, mass 0.750",
        "bad.jpg: it is broken",
        "notes.txt: skipped",
        "1 of 2 images failed",
    ):
        assert message in result.stderr


def test_without_verbose_only_failures_are_worth_a_message(worker: mock.Mock) -> None:
    worker.return_value = finished(ImageResult(Path("a.jpg"), (SHOWN,)), ImageResult(Path("notes.txt"), skipped=True))
    result = invoke("a.jpg")
    assert (result.exit_code, result.stderr) == (0, "")


def test_an_empty_map_is_said(worker: mock.Mock) -> None:
    blank = ClassMap(1, None, 0.5, 0.0, Path("saliency/a.jpg.1.png"), blank=True)
    worker.return_value = finished(ImageResult(Path("a.jpg"), (blank,)))
    result = invoke("a.jpg")
    assert result.exit_code == 0
    assert "a.jpg: the map of class 1 is empty" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="file names are text elsewhere")
def test_a_path_that_is_no_text_is_printed_byte_for_byte(worker: mock.Mock) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    shown = ClassMap(1, None, 0.5, 1.0, Path(name), blank=True)
    worker.return_value = finished(ImageResult(Path(name), (shown,)))
    result = invoke("-v", name)
    assert result.exit_code == 0
    assert result.stdout_bytes == b"caf\xe9.jpg\n"


def test_a_file_name_cannot_command_the_terminal(worker: mock.Mock) -> None:
    worker.return_value = finished(ImageResult(Path("a\n\x1b[2J.jpg"), error="it is broken"))
    result = invoke("d")
    assert result.stderr.splitlines()[0] == r"'a\n\x1b[2J.jpg': it is broken"


def test_only_files_that_are_no_images(worker: mock.Mock) -> None:
    worker.return_value = finished(ImageResult(Path("d/notes.txt"), skipped=True))
    result = invoke("d")
    assert result.exit_code == 2
    assert result.stderr == "Error: there is no image among the files\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigurationError("there is no model 'vgg61'"), 2, "Error: there is no model 'vgg61'\n"),
        (OutputError("cannot write 'a.png': No space left"), 2, "Error: cannot write 'a.png': No space left\n"),
        (
            ValueError("two\nlines"),
            2,
            "Error: ValueError: two lines (unexpected; --debug shows where)\n",
        ),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
    ],
)
def test_errors_are_one_line_and_an_exit_status(
    error: BaseException, code: int, message: str, worker: mock.Mock
) -> None:
    worker.side_effect = error
    result = invoke("a.jpg")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", message)


def test_what_was_done_before_an_error_is_printed(worker: mock.Mock) -> None:
    def results() -> Iterator[ImageResult]:
        yield ImageResult(Path("a.jpg"), (SHOWN,))
        raise KeyboardInterrupt

    worker.return_value = Run("vgg16", "none", "features.23", "cpu", 2, results())
    result = invoke("a.jpg", "b.jpg")
    assert (result.exit_code, result.stdout) == (130, f"{SHOWN.picture}\n")


def test_debug_shows_the_traceback(worker: mock.Mock) -> None:
    worker.side_effect = ConfigurationError("wrong")
    result = invoke("--debug", "a.jpg")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "ConfigurationError: wrong" in result.stderr


@pytest.mark.parametrize("quiet", [True, False])
def test_warnings_are_one_line_or_quiet(quiet: bool, worker: mock.Mock) -> None:
    def warn(plan: RunPlan) -> Run:
        warnings.warn("be careful", stacklevel=1)
        return finished(ImageResult(Path("a.jpg"), (SHOWN,)))

    worker.side_effect = warn
    with warnings.catch_warnings(record=True) as elsewhere:
        result = invoke(*["-q"] * quiet, "a.jpg")
    assert not elsewhere
    assert result.stderr == ("" if quiet else "Warning: be careful\n")


@pytest.mark.parametrize("arguments", [[], ["--top-k", "0", "a.jpg"], ["--alpha", "2", "a.jpg"], ["--no-such-option"]])
def test_wrong_usage(arguments: list[str], worker: mock.Mock) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not worker.mock_calls


def test_list_layers_is_an_aligned_table_with_its_heading_apart() -> None:
    rows = [("NAME", "TYPE"), ("features.0", "Conv2d"), ("x", "ReLU")]
    with mock.patch("ebcli.run.layer_table", autospec=True, return_value=rows) as table:
        result = invoke("--model", "vgg16", "--weights", "none", "--list-layers")
    assert table.mock_calls == [mock.call("vgg16", "none")]
    assert result.stdout == "features.0  Conv2d\nx           ReLU\n"
    assert result.stderr == "NAME        TYPE\n"


def test_list_models() -> None:
    result = invoke("--list-models")
    assert result.exit_code == 0
    assert {"vgg16", "resnet50", "efficientnet_lite0"} <= set(result.stdout.splitlines())


def test_the_module_and_the_command_are_the_same() -> None:
    import ebcli.__main__

    assert ebcli.__main__.main is main

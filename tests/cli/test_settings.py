"""Options from files, in their order, and the file that repeats a run."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import stub_run
from click.testing import CliRunner
from plans import command_plan
from runs import invoke, photos, tree
from stub_run import DONE, finished

from ebcli.cli.saliency import main

EVERYTHING = """
images = ["a.jpg", "b"]
top-k = 3
layer = ["features.5", "input"]
marginal = true
mean = [0.5, 0.25, 0.125]
std = 0.5
class_names = "names.txt"
shard = "2/4"
style = "contour"
report = true
include = "*.jpg"
"""


@pytest.fixture
def worker(worker: mock.Mock) -> mock.Mock:
    """One that runs any number of times."""
    worker.side_effect = lambda plan, sink: finished(DONE)
    return worker


@pytest.fixture(autouse=True)
def directory(working_directory: Path) -> Path:
    Path("names.txt").write_text("a\n")
    return working_directory


def test_a_file_sets_options_and_inputs(worker: mock.Mock) -> None:
    Path("run.toml").write_text(EVERYTHING)
    result = stub_run.invoke("--config", "run.toml")
    assert result.exit_code == 0, result.output
    expected = command_plan(
        *("a.jpg", "b"),
        top_k=3,
        layer=("features.5", "input"),
        contrastive=False,
        mean=(0.5, 0.25, 0.125),
        std=(0.5,),
        class_names=Path("names.txt"),
        shard=(2, 4),
        style="contour",
        report=True,
        include=("*.jpg",),
    )
    assert worker.mock_calls == [mock.call(expected, None)]


def test_the_command_line_wins_over_the_environment_and_that_over_files(worker: mock.Mock) -> None:
    Path("run.toml").write_text("panel = true\ntop-k = 4\n")

    def top_k(*arguments: str, **environment: str) -> int:
        result = stub_run.invoke("a.jpg", *arguments, **environment)
        assert result.exit_code == 0, result.output
        assert worker.call_args.args[0].output.panel
        return int(worker.call_args.args[0].maps.top_k)

    assert top_k("--config", "run.toml") == 4
    assert top_k("--config", "run.toml", EB_SALIENCY_TOP_K="5") == 5
    assert top_k("--config", "run.toml", "--top-k", "6", EB_SALIENCY_TOP_K="5") == 6
    assert top_k(EB_SALIENCY_CONFIG="run.toml") == 4


def test_classes_on_the_command_line_win_over_those_in_a_file(worker: mock.Mock) -> None:
    Path("run.toml").write_text('target = ["tabby"]\n')
    stub_run.invoke("a.jpg", "--config", "run.toml", "--top-k", "2")
    assert (worker.call_args.args[0].maps.targets, worker.call_args.args[0].maps.top_k) == ((), 2)
    Path("run.toml").write_text("top-k = 3\n")
    stub_run.invoke("a.jpg", "--config", "run.toml", "--target", "tabby")
    assert worker.call_args.args[0].maps.targets == ("tabby",)
    Path("run.toml").write_text('top-k = 3\ntarget = ["tabby"]\n')
    assert "both choose the classes" in stub_run.invoke("a.jpg", "--config", "run.toml").stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("topk = 3", "no such setting 'topk': did you mean 'top-k'?"),
        ("doctor = true", "no such setting 'doctor'"),
        ("vmax = 2", "no such setting 'vmax': it is now --scale HIGH"),
        ("config = 'b.toml'", "no such setting 'config'"),
        ("panel = 3", "panel must be true or false"),
        ("style = true", "style must be a value"),
        ("style = ['contour']", "style must be one value, a string or a number"),
        ("style = {a = 1}", "style must be one value, a string or a number"),
        ("output = 2020-01-01", "output must be one value, a string or a number"),
        ("target = [['a']]", "target must be one value, a string or a number"),
        ("images = [{}]", "images must be one value, a string or a number"),
        ("top-k = inf", "'inf' is not a valid integer"),
        ("top-k = 2.7", "'2.7' is not a valid integer"),
        (f"top-k = 0x{'f' * 5000}", "top-k is a number of more than 64 bits"),
        (r'output = "a\u0000b"', "output contains a NUL character"),
        ("image-timeout = inf", "image-timeout is inf, but it must be above 0 and at most 1e+06 s"),
        (f"x = {'[' * 5000}", "is nested too deeply"),
        ("preset = 'figure'", "no such setting 'preset'"),
        ("style = 'contor'", "'contor' is not one of"),
        ("style =", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(content: str, message: str, worker: mock.Mock) -> None:
    Path("run.toml").write_text(content)
    result = stub_run.invoke("--config", "run.toml", "a.jpg")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr
    assert not worker.mock_calls
    assert "cannot read 'none.toml'" in stub_run.invoke("--config", "none.toml", "a.jpg").stderr


def test_a_former_flag_that_is_off_is_no_setting(worker: mock.Mock) -> None:
    Path("run.toml").write_text("interactive = false\n")
    assert stub_run.invoke("--config", "run.toml", "a.jpg").exit_code == 0
    assert worker.call_args.args[0] == command_plan("a.jpg")
    Path("run.toml").write_text("interactive = true\n")
    assert (
        "no such setting 'interactive': it is now --format html"
        in stub_run.invoke("--config", "run.toml").stderr
    )


def test_a_project_s_file_sets_nothing(worker: mock.Mock) -> None:
    Path("pyproject.toml").write_text('[tool.eb-saliency]\nmodel = "vgg16"\nstyle = "contour"\n')
    assert (stub_run.invoke("a.jpg").stderr, worker.call_args.args[0]) == ("", command_plan("a.jpg"))


@pytest.mark.parametrize(
    "options",
    [
        ["--top-k", "2", "--marginal", "--style", "contour"],
        ["--target", "class b", "--target", "3", "--signed", "--mean", "0.5,0.25,0.125", "--shard", "1/1"],
        ["--include", "*.jpg", "--exclude", 'no\x7f"such\\', "--raw"],
    ],
)
def test_the_settings_of_a_run_repeat_it(options: list[str]) -> None:
    photos(Path("photos"), 3)
    first = invoke("-o", "maps", *options, "photos/0", "photos/1")
    assert first.exit_code == 0, first.output
    before = tree(Path("maps"))
    settings = Path("maps/settings.toml").read_bytes()
    for path in Path("maps").rglob("*.jpg"):
        path.unlink()
    again = CliRunner().invoke(main, ["--config", "maps/settings.toml"])
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert tree(Path("maps")) == before
    assert Path("maps/settings.toml").read_bytes() == settings


def test_a_settings_file_of_one_s_own_stops_the_run() -> None:
    photos(Path("photos"), 1)
    Path("maps").mkdir()
    Path("maps/settings.toml").write_text("precious = true\n")
    result = invoke("-o", "maps", "photos")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'maps/settings.toml' would be replaced" in result.stderr
    assert Path("maps/settings.toml").read_text() == "precious = true\n"

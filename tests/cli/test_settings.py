"""Options from files and presets, in their order, and the file that repeats a run."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import click
import pytest
import stub_run
from click.testing import CliRunner
from plans import command_plan
from runs import invoke, photos, tree
from stub_run import DONE, finished

from ebcli.cli.parameters import ClassName, SectionOption
from ebcli.cli.saliency import main, run
from ebcli.cli.settings import PRESETS

DOCUMENTATION = Path(__file__).parents[2] / "docs/reference.md"
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
    worker.side_effect = lambda plan: finished(DONE)
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
        layers=("features.5", "input"),
        contrastive=False,
        mean=(0.5, 0.25, 0.125),
        std=(0.5,),
        class_names=Path("names.txt"),
        shard=(2, 4),
        style="contour",
        report=True,
        include=("*.jpg",),
    )
    assert worker.mock_calls == [mock.call(expected)]


def test_the_command_line_wins_over_the_environment_and_that_over_files_and_presets(worker: mock.Mock) -> None:
    Path("pyproject.toml").write_text("[tool.eb-saliency]\ntop-k = 2\nalpha = 0.5\n")
    Path("run.toml").write_text('preset = "figure"\ntop-k = 4\n')

    def top_k(*arguments: str, **environment: str) -> int:
        result = stub_run.invoke("a.jpg", *arguments, **environment)
        assert result.exit_code == 0, result.output
        return int(worker.call_args.args[0].maps.top_k)

    assert top_k() == 2
    assert top_k("--config", "run.toml") == 4  # the file's own settings win over its preset
    assert worker.call_args.args[0].output.panel
    assert worker.call_args.args[0].style.alpha == 0.92  # pyproject.toml is not used beside --config
    assert top_k("--config", "run.toml", "--preset", "figure") == 3
    assert top_k("--preset", "figure", EB_SALIENCY_TOP_K="5") == 5
    assert top_k("--preset", "figure", "--top-k", "6", EB_SALIENCY_TOP_K="5") == 6
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


FIGURE = {"panel": True, "top_k": 3, "dpi": 300, "cell_size": 460}


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("figure", "--panel --top-k 3 --dpi 300 --cell-size 460", FIGURE),
        (
            "dataset",
            "--format jpg --raw --report --skip-existing",
            {"format": "jpg", "raw": True, "report": True, "skip_existing": True},
        ),
        (
            "paper",
            "--style paper --panel --beside marginal",
            {"style": "paper", "panel": True, "beside": ("marginal",)},
        ),
    ],
)
def test_presets_are_options_that_the_help_and_the_documentation_show(
    name: str, words: str, expected: dict[str, object], worker: mock.Mock
) -> None:
    for arguments in (("--preset", name), words.split()):
        result = stub_run.invoke(*arguments, "a.jpg")
        assert result.exit_code == 0, result.output
        assert worker.call_args.args[0] == command_plan("a.jpg", **expected)
    shown = " ".join(stub_run.invoke("--preset", name, "--help").output.split())
    assert f"The preset {name} stands for {words}." in shown
    table = re.findall(r"^\| `(\w+)` \| .* \| `(.*)` \|$", DOCUMENTATION.read_text(), re.MULTILINE)
    assert dict(table)[name] == words
    assert [name for name, _ in table] == [*PRESETS]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("topk = 3", "no such setting 'topk': did you mean 'top-k'?"),
        ("doctor = true", "no such setting 'doctor'"),
        ("config = 'b.toml'", "no such setting 'config'"),
        ("panel = 3", "panel must be true or false"),
        ("style = true", "style must be a value"),
        ("style = ['contour']", "style must be one value, a string or a number"),
        ("style = {a = 1}", "style must be one value, a string or a number"),
        ("preset = []", "preset must be one value, a string or a number"),
        ("output = 2020-01-01", "output must be one value, a string or a number"),
        ("target = [['a']]", "target must be one value, a string or a number"),
        ("images = [{}]", "images must be one value, a string or a number"),
        ("top-k = inf", "'inf' is not a valid integer"),
        ("top-k = 2.7", "'2.7' is not a valid integer"),
        (f"top-k = 0x{'f' * 5000}", "top-k is a number of more than 64 bits"),
        (r'output = "a\u0000b"', "output contains a NUL character"),
        ("image-timeout = inf", "--image-timeout is inf, but it must be above 0 and at most 1e+06 s"),
        (f"x = {'[' * 5000}", "is nested too deeply"),
        ("preset = 'talk'", "unknown preset 'talk': choose figure"),
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


@pytest.mark.parametrize(
    "setting",
    [
        'model = "nets.py:small"',
        'model = "package.nets:small"',
        'model = "net.onnx"',
        'model = "sub/net.PT2"',
        'model = "ultralytics/yolo11n.pt"',
        'model = "hf/../net"',
        'model = "hf//tmp/net"',
        'model = "clip/linked"',
        'model = "open_clip/net"',
        'like = "a.jpg"',
        'against = "/etc/passwd"',
        'where = "/etc/passwd"',
        'weights = "linked/w.pth"',
        'class-names = "names.link"',
        'output = "linked"',
        'output = "linked/pic.png"',
        'output = "sub/../linked/pic.png"',
        "image-timeout = 1e9",
        "image-timeout = nan",
        "workers = 3000",
        'batch-size = "100000000"',
        "crop = 100000",
        'images = ["/etc"]',
        'from-file = "list"',
        'class-names = "/etc/passwd"',
        'class-names = "../names.txt"',
        'weights = "/tmp/w.pth"',
        'output = "../elsewhere"',
        'output = "/tmp/elsewhere"',
        "overwrite = true",
        "max-pixels = 1000000000000",
        "max-bytes = 1000000000000",
        'engine = "ray"',
        'config = "run.toml"',
        'report-only = "maps"',
    ],
)
def test_the_project_s_file_cannot_name_code_inputs_or_other_places(
    setting: str, worker: mock.Mock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    for directory in ("sub", "net"):
        Path(directory).mkdir()
    for link, target in (("linked", outside), ("net/config.json", outside / "a"), ("names.link", outside / "a")):
        Path(link).symlink_to(target)
    Path("pyproject.toml").write_text(f"[tool.eb-saliency]\n{setting}\n")
    result = stub_run.invoke("a.jpg")
    assert (result.exit_code, worker.mock_calls, result.stderr.count("\n")) == (2, [], 1)
    assert "pyproject.toml: " in result.stderr
    assert "with --config" in result.stderr or "such setting" in result.stderr
    Path("run.toml").write_text("")
    assert stub_run.invoke("--config", "run.toml", "a.jpg").exit_code == 0  # which is the user's own


def test_the_project_s_file_may_name_what_lies_in_its_directory_and_tighten_limits(worker: mock.Mock) -> None:
    Path("sub").mkdir()
    Path("linked").symlink_to("sub")
    Path("pyproject.toml").write_text(
        '[tool.eb-saliency]\nmodel = "hf/sub"\nweights = "sub/w.pth"\nclass-names = "names.txt"\n'
        'output = "linked/maps"\nimage-timeout = 10\nworkers = 1\nbatch-size = 1\nagainst = "tiger cat"\n'
    )
    result = stub_run.invoke("a.jpg")
    assert result.exit_code == 0, result.output
    plan = worker.call_args.args[0]
    assert (plan.model.name, plan.output.directory) == ("hf/sub", Path("linked/maps"))
    assert (plan.execution.image_timeout, plan.execution.workers, plan.execution.batch_size) == (10, 1, 1)


def test_each_text_in_the_project_s_file_is_judged_as_a_path_or_is_never_one(worker: mock.Mock) -> None:
    """An option that is added later and names files must not slip through."""
    never_paths = {"layers", "targets", "include", "exclude", "cmap", "device"}
    texts = (click.types.StringParamType, ClassName, click.Path, click.File)
    judged = set()
    options = [option for option in run.params if isinstance(option, SectionOption) and isinstance(option.type, texts)]
    for option in options:
        name = max(option.opts, key=len).lstrip("-")
        Path("pyproject.toml").write_text(f'[tool.eb-saliency]\n{name} = "/etc/passwd"\n')
        if stub_run.invoke("a.jpg").exit_code == 2:
            judged.add(option.name)
    assert {option.name for option in options} == judged | never_paths
    assert not judged & never_paths


@pytest.mark.parametrize(
    "content",
    [
        f"x = {'[' * 5000}",
        f"{'.'.join('a' * 2000)} = 1\n[tool.eb-saliency]\ntop-k = 2",
        f"[tool.eb-saliency]\ntop-k = 2\n{'#' * (1 << 18)}",
    ],
)
def test_a_project_s_file_that_is_no_ordinary_one_is_not_parsed(content: str, worker: mock.Mock) -> None:
    Path("pyproject.toml").write_text(content)
    with mock.patch("ebcli.cli.settings.tomllib.loads", side_effect=AssertionError("it is parsed")):
        result = stub_run.invoke("a.jpg")
    assert (result.exit_code, result.stderr) == (0, "")
    assert worker.call_args.args[0].maps.top_k is None


def test_what_the_project_s_file_sets_is_said(worker: mock.Mock) -> None:
    Path("pyproject.toml").write_text('[tool.eb-saliency]\nmodel = "vgg16"\nstyle = "contour"\n')
    assert stub_run.invoke("a.jpg").stderr == "Settings from pyproject.toml: model, style\n"
    assert stub_run.invoke("-q", "a.jpg").stderr == ""
    assert worker.call_args.args[0].model.name == "vgg16"
    for other in ("not toml", "[tool.other]\nstyle = 3\n", "tool = 3"):
        Path("pyproject.toml").write_text(other)
        assert stub_run.invoke("a.jpg").exit_code == 0


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
    Path("pyproject.toml").write_text('[tool.eb-saliency]\nstyle = "paper"\n')
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

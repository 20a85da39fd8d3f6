"""One picture into a named file or to stdout, an image on stdin, and one line about wrong usage."""

from __future__ import annotations

import io
import re
from pathlib import Path
from unittest import mock

import pytest
import stub_run
from click.testing import CliRunner, Result
from PIL import Image
from runs import invoke, photos

from ebcli.cli.option_hints import HINTS
from ebcli.cli.saliency import main, run
from ebcli.run.plan import SETTINGS_ONLY

FIGURE = ("--panel", "--top-k", "3", "--dpi", "300", "--cell-size", "460")


@pytest.fixture(autouse=True)
def photo(working_directory: Path) -> Path:
    photos(working_directory / "d", 1)
    path = working_directory / "in.jpg"
    (working_directory / "d/0/0000.jpg").rename(path)
    return path


def with_stdin(content: bytes, *arguments: str) -> Result:
    return CliRunner().invoke(main, ("--layer", "2", "--workers", "0", *arguments), input=content)


@pytest.mark.parametrize(
    ("name", "format_"),
    [("out.png", "PNG"), ("new/out.jpeg", "JPEG"), ("out.JPG", "JPEG"), ("a.b.webp", "WEBP")],
)
def test_the_picture_is_that_very_file_and_nothing_else_is_written(
    name: str, format_: str, photo: Path
) -> None:
    before = {path for path in photo.parent.rglob("*") if path.is_file()}
    result = invoke("in.jpg", "-o", name)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{name}\n", "")
    assert {path for path in photo.parent.rglob("*") if path.is_file()} - before == {photo.parent / name}
    with Image.open(name) as picture:
        assert (picture.format, picture.size) == (format_, (48, 40))
    assert invoke("in.jpg", "-o", name).exit_code == 0  # it is this program's own, so it is replaced


def test_the_picture_is_replaced_as_a_whole() -> None:
    """The old file stays complete, under another name, so nobody can read half of the new one."""
    assert invoke("in.jpg", "-o", "out.png", "--target", "1").exit_code == 0
    Path("old.png").hardlink_to("out.png")
    before = Path("old.png").read_bytes()
    assert invoke("in.jpg", "-o", "out.png", "--target", "2").exit_code == 0
    assert Path("old.png").read_bytes() == before != Path("out.png").read_bytes()


def test_a_picture_of_one_s_own_is_not_replaced(photo: Path) -> None:
    content = photo.read_bytes()
    Path("mine.jpg").write_bytes(content)
    result = invoke("in.jpg", "-o", "mine.jpg")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'mine.jpg' would be replaced" in result.stderr
    assert Path("mine.jpg").read_bytes() == content
    assert invoke("in.jpg", "-o", "mine.jpg", "--overwrite").exit_code == 0
    assert Path("mine.jpg").read_bytes() != content


def test_the_photo_itself_is_never_replaced(photo: Path) -> None:
    content = photo.read_bytes()
    Path("link.jpg").symlink_to(photo)
    for name in ("in.jpg", "link.jpg"):
        result = invoke("in.jpg", "-o", name, "--overwrite")
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"'{name}' is the image that is explained" in result.stderr
    assert photo.read_bytes() == content


def test_several_maps_fit_into_one_panel() -> None:
    assert invoke("in.jpg", "-o", "out.png", "--top-k", "3", "--panel").exit_code == 0
    with Image.open("out.png") as picture:
        assert picture.width > 4 * 48


def lengths(name: str, content: bytes) -> list[float]:
    """The width and height of a PDF or SVG file in points."""
    sides = {
        "figure.pdf": rb"/MediaBox \[ 0 0 ([0-9.]+) ([0-9.]+) \]",
        "figure.svg": rb'<svg [^>]*width="([0-9.]+)pt" height="([0-9.]+)pt"',
    }
    found = re.search(sides[name], content)
    assert found is not None
    return [float(side) for side in found.groups()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "creator", "broken"),
    [
        ("figure.pdf", b"(eb-saliency)", b"%PDF-1.4 broken"),
        ("figure.svg", b"eb-saliency</dc:title>", b"<svg><a>"),
    ],
)
def test_a_figure_as_pdf_or_svg_has_the_size_that_dpi_says_and_tells_how_it_was_made(
    name: str, creator: bytes, broken: bytes
) -> None:
    assert invoke("in.jpg", "-o", name, *FIGURE).exit_code == 0
    assert invoke("in.jpg", "-o", "figure.png", *FIGURE).exit_code == 0
    content = Path(name).read_bytes()
    with Image.open("figure.png") as figure:
        assert figure.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert lengths(name, content) == pytest.approx([side * 72 / 300 for side in figure.size], abs=0.01)
    assert "contrastive EB" in invoke("info", name).stdout
    assert invoke("in.jpg", "-o", name, *FIGURE).exit_code == 0  # its own is replaced
    assert Path(name).read_bytes() == content  # and the same, without a date
    for mine in (broken, content.replace(creator, creator.replace(b"eb-saliency", b"somebody---"))):
        assert mine != content
        Path(name).write_bytes(mine)
        result = invoke("in.jpg", "-o", name, *FIGURE)
        assert (result.exit_code, f"'{name}' would be replaced" in result.stderr) == (2, True)
    result = invoke("in.jpg", "-o", name.replace("figure", "one"))
    assert result.exit_code == 0  # such a file is a figure, without --panel
    assert "contrastive EB" in invoke("info", name.replace("figure", "one")).stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["in.jpg", "in.jpg", "-o", "out.png"], "there are 2 inputs"),
        (["d", "-o", "out.png"], "'d' may hold many images"),
        (
            ["in.jpg", "-o", "out.png", "--top-k", "2"],
            "takes one picture, but there are several maps: add --panel",
        ),
        (["in.jpg", "-o", "out.png", "--target", "1", "--target", "2"], "several maps"),
        (["in.jpg", "-o", "out.png", "--layer", "0"], "several maps"),
        (["in.jpg", "-o", "out.png", "--layer", "all"], "several maps"),
        (["in.jpg", "-o", "out.png", "--raw"], "--raw needs a directory"),
        (["in.jpg", "-o", "out.png", "--skip-existing"], "--skip-existing needs a directory"),
        (["in.jpg", "-o", "out.png", "--format", "jpg"], "'out.png' is not jpg"),
        (["in.jpg", "-o", "out.tif"], "choose .png, .jpg or .webp"),
        (
            ["scan.nii.gz", "-o", "map.nii.gz"],
            "written as .nii.gz: with -o DIRECTORY --raw, the map of a volume is "
            "'DIRECTORY/scan.nii.gz.INDEX-CLASS.nii.gz'",
        ),
        (
            ["d", "-o", "map.nii"],
            "written as .nii: with -o DIRECTORY --raw, the map of a volume is 'DIRECTORY/INPUT.",
        ),
        (
            ["in.jpg", "-o", "map.npy"],
            "written as .npy: with -o DIRECTORY --raw, the maps are in 'DIRECTORY/in.jpg.npz'",
        ),
        (["in.jpg", "-o", "maps.csv"], "written as .csv: name a directory, and add --records FILE.csv"),
        (["in.jpg", "-o", "maps.json"], "written as .json: name a directory, whose records.jsonl"),
        (["in.jpg", "-o", "-", "--json"], "--json prints records"),
    ],
)
def test_what_needs_a_directory_says_so_in_one_line(arguments: list[str], reason: str) -> None:
    with mock.patch("ebcli.run.engine.run", side_effect=AssertionError):
        result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("out.png").exists()


def test_a_choice_of_classes_that_is_replaced_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EB_SALIENCY_TARGET", "1;2")
    assert invoke("in.jpg", "-o", "out.png", "--top-k", "1").stdout == "out.png\n"


def test_a_directory_may_be_named_like_a_picture() -> None:
    Path("maps.png").mkdir()
    assert invoke("in.jpg", "-o", "maps.png").stdout.startswith("maps.png/in.jpg.")


@pytest.mark.parametrize("arguments", [["-"], ["-", "-o", "-"]])
def test_a_picture_on_stdin_and_stdout(arguments: list[str], photo: Path) -> None:
    result = with_stdin(photo.read_bytes(), *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    from_file = invoke("in.jpg", "-o", "out.png")
    assert from_file.exit_code == 0
    with Image.open(io.BytesIO(result.stdout_bytes)) as piped, Image.open("out.png") as written:
        assert piped.tobytes() == written.tobytes()


def test_stdin_among_other_images(photo: Path) -> None:
    result = with_stdin(photo.read_bytes(), "-", "in.jpg", "-o", "maps", "--format", "png")
    first, second = result.stdout.splitlines()
    assert first.startswith("maps/stdin.")
    with Image.open(first) as one, Image.open(second) as other:
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("content", "arguments", "code", "reason"),
    [
        (b"", ["-"], 2, "stdin is empty"),
        (b"no picture", ["-"], 1, "stdin: not an image that Pillow can read"),
        (b"x" * 100, ["-", "--config", "99.toml"], 2, "more than 99 bytes"),
        (
            b"x" * 2_500_001,
            ["-", "--config", "2500000.toml"],
            2,
            "more than 2500000 bytes",
        ),  # read in several parts
        (b"x" * 2_500_000, ["-", "--config", "2500000.toml"], 1, "stdin: not an image that Pillow can read"),
        (b"a.jpg\n", ["-", "--from-file", "-"], 2, "drop - or --from-file -"),
        (b"x", ["-", "--engine", "ray", "--workers", "1"], 2, "cannot read stdin"),
    ],
)
def test_a_wrong_stdin(content: bytes, arguments: list[str], code: int, reason: str) -> None:
    for limit in (99, 2_500_000):
        Path(f"{limit}.toml").write_text(f"max-bytes = {limit}\n")
    result = with_stdin(content, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stream", "message"),
    [
        (["in.jpg", "-o", "-"], "stdout", "stdout is a terminal: "),
        (["-"], "stdin.buffer", "stdin is a terminal: "),
    ],
)
def test_terminals_are_not_for_pictures(
    arguments: list[str], stream: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch("sys.stdin"), mock.patch(f"sys.{stream}") as terminal, pytest.raises(SystemExit) as ended:
        terminal.isatty.return_value = True
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_in_place_of_the_directory_is_reported_before_any_work(photo: Path) -> None:
    Path("afile").write_bytes(b"mine")
    with mock.patch("ebcli.run.engine.run", side_effect=AssertionError):
        result = invoke(photo.name, "-o", "afile/x.png")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: cannot write 'afile/x.png': 'afile' is not a directory\n"


def test_paths_can_end_with_nul(worker: mock.Mock) -> None:
    assert stub_run.invoke("-0", "a.jpg").stdout_bytes == stub_run.PICTURE.encode() + b"\0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--topk 3 a.jpg", "Error: no such option --topk: did you mean '--top-k'?\n"),
        ("--beside marginal a.jpg", "Error: no such option --beside: it is now --compare-with\n"),
        ("--checkpoint a.pth a.jpg", "Error: no such option --checkpoint: use --weights FILE\n"),
        (
            "--max-pixels 9 a.jpg",
            "Error: no such option --max-pixels: set EB_SALIENCY_MAX_PIXELS, or max-pixels in a file for --config\n",
        ),
        (
            "layers efficientnet_lite0",
            "Error: unexpected argument 'efficientnet_lite0': use --model efficientnet_lite0\n",
        ),
        ("doctor now", "Error: unexpected argument 'now': eb-saliency doctor --help says what it takes\n"),
        ("--frobnicate a.jpg", "Error: no such option --frobnicate: eb-saliency --help lists all options\n"),
        ("a.jpg -o", "Error: Option '-o' requires an argument.\n"),
        ("", "Error: no images given: name some, as in eb-saliency photo.jpg; -h lists options\n"),
    ],
)
def test_wrong_usage_takes_one_line(arguments: str, message: str) -> None:
    result = CliRunner().invoke(main, arguments.split(), prog_name="eb-saliency")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)


@pytest.mark.parametrize("name", HINTS)
def test_the_names_in_a_hint_are_options(name: str) -> None:
    result = CliRunner().invoke(main, [name, "a.jpg"])
    assert (result.exit_code, result.stderr) == (2, f"Error: no such option {name}: {HINTS[name]}\n")
    known = {one for option in run.params for one in (*option.opts, *option.secondary_opts)}
    assert set(re.findall(r"(?<!\w)--?[a-z0-9][\w-]*(?= |$|,|:)", HINTS[name])) <= known


@pytest.mark.parametrize("name", sorted(SETTINGS_ONLY))
def test_a_setting_without_an_option_says_where_it_is_set(name: str) -> None:
    word, variable = name.replace("_", "-"), f"EB_SALIENCY_{name.upper()}"
    assert (
        f"no such option --{word}: set {variable}, or {word} in a file for --config"
        in invoke(f"--{word}").stderr
    )
    assert variable in (shown := stub_run.invoke("--help").stdout) and f"--{word} " not in shown


def test_names_from_elsewhere_are_understood() -> None:
    names = "--checkpoint --imgsz --conf --class --gpu --img-size --threads"
    assert set(names.split()) <= HINTS.keys()


@pytest.mark.parametrize("spelling", ["grad-cam", "GradCAM", "grad_cam", "Grad-CAM"])
def test_a_method_may_be_spelt_in_any_way(spelling: str, worker: mock.Mock) -> None:
    assert stub_run.invoke("a.jpg", "--panel", "--compare-with", spelling).exit_code == 0
    (plan, _), _ = worker.call_args
    assert plan.maps.beside == ("grad-cam",)

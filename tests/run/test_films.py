"""Videos by networks for images: each frame is explained, with one question, one scale and the source's times."""

import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from click.testing import CliRunner
from color_net import BLUE, RED, SIDE, painted
from films import GRAY, NETS, levels, outputs, rows, run
from PIL import Image
from runs import records, until
from videos import fill_folder, moving_square, read_video, times_of, write_frames, write_uneven, write_video

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Map
from ebcli.errors import ImageError
from ebcli.files.naming import UNFINISHED
from ebcli.run import film_rendering, films


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path, NETS)
    return tmp_path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.files.media.film.PART", 6)


def squares(colors: Sequence[tuple[int, int, int]]) -> list[Image.Image]:
    """Frames with a square of a color each."""
    return [painted((SIDE, SIDE), (color, (8, 8, 24, 24))) for color in colors]


def test_each_frame_has_its_map_and_the_video_its_times(small_parts: None) -> None:
    """The marginal map of red is the red of the pixels, over its sum in the frame."""
    frames = moving_square(20)
    moments = [0, 100, 150, 400, *range(500, 2100, 100)]
    write_uneven(Path("uneven.mkv"), frames, moments)
    paths = outputs(run("uneven.mkv", *GRAY, "--smooth", "0", "--raw"))
    assert paths == [f"saliency/uneven.mkv.{end}" for end in ("0-red+marginal.mp4", "frames+marginal.csv",
                                                             "maps+marginal.npz")]  # fmt: skip
    red = np.stack([np.asarray(frame)[..., 0] for frame in frames]) / 255
    with np.load(paths[2]) as arrays:
        assert arrays["maps"].shape == (1, 20, SIDE, SIDE)
        np.testing.assert_allclose(arrays["maps"][0], red / red.sum((1, 2), keepdims=True), atol=2e-4)
        np.testing.assert_allclose(arrays["times"], np.array(moments) / 1000, atol=1e-3)
    np.testing.assert_allclose(times_of(Path(paths[0])), np.array(moments) / 1000, atol=1e-3)
    assert np.abs(levels(Path(paths[0])) - 255 * red).mean() < 1  # but for what H.264 loses
    table = rows(Path(paths[1]))
    assert [float(row["time"]) for row in table] == pytest.approx(
        [moment / 1000 for moment in moments], abs=1e-3
    )
    lefts = [float(row["left"]) for row in table]
    assert lefts == pytest.approx([min(frame, SIDE - 8) for frame in range(20)], abs=1)
    (record,) = records(Path("saliency"))
    assert (record["film"]["frames"], record["film"]["broken"]) == (20, 0)
    assert record["film"]["start"] == pytest.approx(0, abs=1e-3)
    assert record["film"]["end"] >= 2
    assert record["classes"][0]["score"] == pytest.approx(np.mean([float(row["score"]) for row in table]))


def test_the_class_with_the_highest_mean_score_is_explained_in_all_frames() -> None:
    """Red leads in most frames, blue on average."""
    frames = squares([(140, 0, 130)] * 12 + [BLUE] * 8)
    write_frames(Path("shots"), frames)
    (path, _) = outputs(run("shots", "--frames", "10"))
    assert path == "saliency/shots.2-blue.mp4"
    names = outputs(run("shots", "--frames", "10", "-k", "2", "-o", "two"))
    assert [Path(name).name for name in names] == ["shots.2-blue.mp4", "shots.0-red.mp4", "shots.frames.csv"]
    assert outputs(run("shots", "--frames", "10", "-k", "2", "--panel", "-o", "panel.mp4")) == ["panel.mp4"]
    (width, height) = read_video(Path("panel.mp4"))[0].size
    assert width > 2 * height


def test_of_two_classes_each_has_its_own_video_maps_and_scores(small_parts: None) -> None:
    """In all frames, blue is in rows 24 to 28, and red in rows 4 to 12."""
    targets = ("--target", "blue", *GRAY, "--smooth", "0", "--raw")
    *videos, table, raw = outputs(run("move.mp4", *targets))
    with np.load(raw) as file:
        arrays = dict(file)
    assert arrays["names"].tolist() == ["blue", "red"]
    for i, span in enumerate((slice(24, 28), slice(4, 12))):
        name, maps = arrays["names"][i], arrays["maps"][i]
        assert Path(videos[i]).name.endswith(f"{name}+marginal.mp4")
        for values in (maps, levels(Path(videos[i]))):
            most = 0.6 * values.sum((1, 2))  # H.264 spreads colors
            assert (values[:, span].sum((1, 2)) > most).all()
        scores = [float(row["score"]) for row in rows(Path(table)) if row["name"] == name]
        np.testing.assert_allclose(arrays["frame_scores"][i], scores, rtol=1e-5)
        assert arrays["scores"][i] == pytest.approx(np.mean(scores), rel=1e-5)


def test_a_report_shows_the_frame_with_the_most_evidence(small_parts: None) -> None:
    dark = (60, 0, 0)
    write_frames(Path("shots"), squares([dark] * 8 + [RED] + [dark] * 3))
    outputs(run("shots", "--frames", "10", "--marginal", "--target", "red", "--report"))
    (photo,) = Path("saliency/report/thumbnails").rglob("*.jpg")
    with Image.open(photo) as image:
        assert image.getpixel((12, 12))[0] > 200


def test_frames_without_scores_have_no_maps_and_no_say_in_the_class() -> None:
    write_frames(Path("shots"), squares([BLUE] * 6 + [(0, 0, 0)] * 2))
    result = run("shots", "--frames", "10", model="unsure")
    assert "2 frames without a map, as scores are not finite" in result.stderr
    assert result.stdout.splitlines() == ["saliency/shots.2-blue.mp4", "saliency/shots.frames.csv"]
    table = rows(Path("saliency/shots.frames.csv"))
    assert [row["name"] for row in table] == ["blue"] * 6 + [""] * 2
    assert [float(row["time"]) for row in table] == pytest.approx(np.arange(8) / 10)


def test_batches_are_halved_when_memory_runs_out() -> None:
    write_frames(Path("shots"), squares([BLUE] * 8))
    paths = outputs(run("shots", "--frames", "10", "--batch-size", "8", model="narrow"))
    assert len(rows(Path(paths[1]))) == 8


def test_all_frames_share_a_scale() -> None:
    """A marginal map spreads the same mass over a square of four times the area, so it is drawn a fourth as bright."""
    sides = [8] * 4 + [16] * 4
    write_frames(Path("shots"), [painted((SIDE, SIDE), (RED, (8, 8, 8 + side, 8 + side))) for side in sides])
    outputs(run("shots", "--frames", "10", *GRAY, "--smooth", "0", "-o", "out.mp4"))
    np.testing.assert_allclose(levels(Path("out.mp4"))[:, 12, 12], [255] * 4 + [64] * 4, atol=6)


def test_a_map_that_rests_on_little_evidence_is_faint(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a picture with a scale of its own: drawn at a third of its brightness if so much is given."""
    write_frames(Path("shots"), squares([RED] * 8))
    outputs(run("shots", "--frames", "10", *GRAY, "-o", "whole.mp4"))
    monkeypatch.setattr(Map, "brightness", lambda *_: 1 / 3)
    outputs(run("shots", "--frames", "10", *GRAY, "-o", "faint.mp4"))
    np.testing.assert_allclose(levels(Path("faint.mp4")), levels(Path("whole.mp4")) / 3, atol=6)


def test_maps_are_averaged_over_time_across_parts(small_parts: None) -> None:
    """Weights fall linearly: with frames 0.1 s apart and 0.2 s, they are 1/2, 1, 1/2, over their sum."""
    frames = moving_square(20)
    write_frames(Path("shots"), frames)
    paths = outputs(run("shots", "--frames", "10", *GRAY, "--smooth", "0.2"))
    red = np.stack([np.asarray(frame)[..., 0] for frame in frames]) / 255
    expected = []
    for i in range(20):
        weights = {j: 1 - abs(i - j) / 2 for j in (i - 1, i, i + 1) if 0 <= j < 20}
        expected.append(sum(weight * red[j] for j, weight in weights.items()) / sum(weights.values()))
    rows_of_square = levels(Path(paths[0]))[:, 5:11]
    np.testing.assert_allclose(rows_of_square, 255 * np.stack(expected)[:, 5:11], atol=30)


def test_every_and_a_part_keep_the_times() -> None:
    (path, _) = outputs(run("move.mp4", "--every", "3", "--start", "0.5", "--duration", "1"))
    assert times_of(Path(path)) == pytest.approx([0, 0.3, 0.6, 0.9], abs=1e-3)
    with av.open(path) as container:
        assert container.duration / av.time_base == pytest.approx(1, abs=1e-3)


def test_frames_at_the_same_time_are_one() -> None:
    moments = [*range(0, 1000, 100), 900, 900, *range(1000, 1800, 100)]
    write_uneven(Path("equal.mkv"), moving_square(20), moments)
    outputs(run("equal.mkv", "-o", "out.mp4"))
    assert times_of(Path("out.mp4")) == pytest.approx([i / 10 for i in range(18)], abs=1e-3)


def test_the_objects_of_a_frame_are_in_one_picture() -> None:
    patches = [
        [(RED, (4 * i, 20, 4 * i + 48, 68)), (BLUE, (120, 70, 168, 118))][: 2 - i // 6] for i in range(8)
    ]
    write_frames(Path("shots"), [painted((192, 128), *frame) for frame in patches])
    path, table = outputs(run("shots", "--frames", "10", "--caption", model="segmenter", layer=None))
    assert path == "saliency/shots.objects.mp4"
    counts = [sum(float(row["time"]) == pytest.approx(i / 10) for row in rows(Path(table))) for i in range(8)]
    assert counts == [2] * 6 + [1] * 2
    blue = [float(row["left"]) for row in rows(Path(table)) if row["name"] == "blue"]
    assert blue == pytest.approx([120] * 6, abs=2)
    assert len({frame.size for frame in read_video(Path(path))}) == 1


def check_same_results(first: Path, second: Path, names: str) -> None:
    """The same bytes, and videos with the same frames: libx264 may encode equal frames in different ways."""
    paths = [*first.glob(names)]
    assert paths
    for path in paths:
        other = second / path.name
        if path.suffix == ".mp4":
            assert times_of(other) == times_of(path)
            np.testing.assert_allclose(levels(other), levels(path), atol=20)
        else:
            assert other.read_bytes() == path.read_bytes()


def test_processes_make_the_same_files() -> None:
    for workers in (0, 2):
        outputs(run("move.mp4", "-k", "2", "--raw", "-o", f"maps{workers}", workers=workers))
    check_same_results(Path("maps0"), Path("maps2"), "move*")


def test_memory_does_not_grow_with_the_length(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """However slow the network is, at most a few parts of a video are in memory: their pixels, and their maps."""
    pixels: list[weakref.ref[Any]] = []
    maps: list[weakref.ref[Any]] = []
    most = 0
    read, draw, explain = films.read_film, film_rendering.draw_part, films._FilmRun._explain

    def read_counted(job: Any, number: int) -> Any:
        part = read(job, number)
        pixels.extend(map(weakref.ref, part.pixels[:1]))
        return part

    def draw_counted(job: Any, number: int, part: Any, of_frames: Any, reel: Any, *others: Any) -> Any:
        maps.append(weakref.ref(reel.values[0]))
        return draw(job, number, part, of_frames, reel, *others)

    def explain_last(film: Any, images: Any) -> Any:
        nonlocal most
        film._run.workers.submit(int).result()  # the only thread has done all before
        most = max(most, *(sum(array() is not None for array in arrays) for arrays in (pixels, maps)))
        return explain(film, images)

    monkeypatch.setattr(films, "read_film", read_counted)
    monkeypatch.setattr(film_rendering, "draw_part", draw_counted)
    monkeypatch.setattr(films._FilmRun, "_explain", explain_last)
    write_video(Path("long.mp4"), moving_square(120))
    outputs(run("long.mp4", "-o", "out.mp4"))
    assert len(pixels) == len(maps) == 120 // 6
    assert 1 < most <= 5


SMALL_PARTS = "import ebcli.files.media.film as film\nfilm.PART = 6\n"
SCRIPT = (
    "import sys\nsys.path[:0] = {path!r}\n" + SMALL_PARTS + "from ebcli.cli.saliency import main\nmain()\n"
)


def start(*arguments: str, **streams: Any) -> "subprocess.Popen[bytes]":
    """A run of its own, with small parts."""
    options = ("--model", "nets.py:colors", "--layer", "2", "--workers", "0", "--batch-size", "2")
    code = SCRIPT.format(path=[path for path in sys.path if path])
    return subprocess.Popen(
        [sys.executable, "-c", code, *options, *arguments], start_new_session=True, **streams
    )


@pytest.mark.slow
def test_a_killed_run_resumes_at_its_last_finished_part() -> None:
    write_video(Path("long.mp4"), moving_square(90))
    Path("calls.txt").write_text("")
    process = start("long.mp4", "--target", "red", "-o", "out")
    until(lambda: any(Path("out").glob(f"{UNFINISHED}/*/000003.npz")) or process.poll() is not None)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not Path("out/long.mp4.0-red.mp4").exists()
    finished = len([*Path("out").glob(f"{UNFINISHED}/*/*.npz")])
    Path("calls.txt").write_text("")
    resuming = start("long.mp4", "--target", "red", "-o", "out", stderr=subprocess.PIPE)
    _, message = resuming.communicate()
    assert resuming.returncode == 0
    assert message.count(b"long.mp4: resumes where an earlier run ended\n") == 1
    resumed = len(Path("calls.txt").read_text())
    Path("calls.txt").write_text("")
    assert start("long.mp4", "--target", "red", "-o", "whole").wait() == 0
    from_scratch = len(Path("calls.txt").read_text())
    assert from_scratch - resumed == 3 * finished  # batches of two in parts of six
    check_same_results(Path("whole"), Path("out"), "long*")
    assert not Path("out", UNFINISHED).exists()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("changed", ["question", "style", "file", "nothing", "first part", "report"])
def test_only_the_same_command_uses_finished_parts(
    monkeypatch: pytest.MonkeyPatch, small_parts: None, changed: str
) -> None:
    def fail(*_: object) -> str:
        raise ImageError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("ebcli.run.film_files.finish", fail)
        assert run("move.mp4", "--target", "red", "--raw").exit_code == 1
    assert [*Path("saliency", UNFINISHED).glob("*/*.npz")]
    options = ["--target", "blue" if changed == "question" else "red", "--raw"]
    if changed == "style":
        options += ["--style", "heatmap"]
    elif changed == "file":
        write_video(Path("move.mp4"), moving_square(20)[::-1])
    elif changed == "report":
        options += ["--report"]
    elif changed == "first part":  # others were finished before it
        min(Path("saliency", UNFINISHED).glob("*/*.npz")).unlink()
    result = run("move.mp4", *options)
    outputs(result)
    assert ("move.mp4: resumes" in result.stderr) == (changed == "nothing")
    outputs(run("move.mp4", *options, "-o", "fresh"))
    check_same_results(Path("fresh"), Path("saliency"), "move*")


def test_several_videos_and_photos_share_a_run_that_can_be_resumed_and_verified() -> None:
    Path("inputs").mkdir()
    for name in ("a.mp4", "b.mp4"):
        write_video(Path("inputs", name), moving_square(10))
    moving_square(1)[0].save("inputs/c.png")
    names = outputs(run("inputs", "--raw", "--report"))
    assert [Path(name).name for name in names if name.endswith((".mp4", ".png"))] == [
        "a.mp4.0-red.mp4", "b.mp4.0-red.mp4", "c.png.0-red.png"]  # fmt: skip
    assert run("inputs", "--raw", "--report", "--skip-existing").stdout == ""
    verified = CliRunner().invoke(main, ["verify", "saliency"])
    assert (verified.exit_code, "8 intact" in verified.output) == (0, True)
    page = Path("saliency/report/index.html").read_text()
    assert "a.mp4.0-red.mp4" in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [bool(image["outcomes"][0]["photo"]) for image in data["images"]] == [True] * 3


def test_a_video_has_a_label_and_one_prediction(small_parts: None) -> None:
    """Blue leads on average, red in most frames; neither is the label."""
    write_frames(Path("inputs/green/shots"), squares([(140, 0, 130)] * 12 + [BLUE] * 8))
    result = run("inputs/green/shots", "--frames", "10", "--labels", "folders", "--raw")
    names = [Path(name).name for name in outputs(result) if name.endswith(".mp4")]
    assert sorted(names) == ["shots.1-green.mp4", "shots.2-blue.mp4"]
    (record,) = records(Path("saliency"))
    assert (record["label"], record["predicted"]) == (1, 2)


def test_a_scale_of_the_run_is_that_of_its_videos_too() -> None:
    """A marginal map of a small square has a greater peak than that of a large one: 4 times for half the side."""
    for name, side in (("small", 8), ("large", 16)):
        write_frames(Path(name), [painted((SIDE, SIDE), (RED, (8, 8, 8 + side, 8 + side)))] * 4)
    outputs(run("small", "large", "--frames", "10", *GRAY, "--scale", "run"))
    for name, level in (("small", 255), ("large", 64)):
        values = levels(Path(f"saliency/{name}.0-red+marginal.mp4"))
        np.testing.assert_allclose(values[:, 12, 12], level, atol=6)


@pytest.mark.parametrize("options", [("--sufficiency",), ("--annotations", "boxes"), ("--style", "mask")])
def test_what_is_for_photos_only_is_refused(options: tuple[str, ...]) -> None:
    result = run("move.mp4", *options)
    assert result.exit_code == 1
    assert (
        f"it is a video, but {' '.join(options[: 1 if options[0] != '--style' else 2])} is for photos"
        in result.stderr
    )


def test_from_python_a_video_says_what_explains_it() -> None:
    with pytest.raises(ImageError, match=r"it is a video, not an image: eb-saliency VIDEO -o out.mp4"):
        ebcli.explain("efficientnet_lite0", "move.mp4")

"""Runs over videos, by a network whose maps are known: they follow a square in space and time."""

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from PIL import Image
from runs import records
from videos import NETS, SIDE, SQUARE, fill_folder, left, moving_square, read_video, write_frames, write_video

from ebcli.cli.saliency import main
from ebcli.files.encoding import read_facts
from ebcli.files.naming import parse_result_name


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path, NETS)
    return tmp_path


def run(*arguments: str, model: str = "colors", workers: int = 0, every: str = "1") -> Result:
    options = ("--model", f"nets.py:{model}", "--layer", "2", "--workers", str(workers))
    return CliRunner().invoke(main, [*options, *arguments], env={"EB_SALIENCY_EVERY": every})


def outputs(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def brightness(path: Path) -> NDArray[np.floating]:
    """The gray values (frames, h, w) of a video drawn as a gray heatmap."""
    return np.stack([np.asarray(frame.convert("L"), float) for frame in read_video(path)])


def test_a_video_has_a_video_and_a_contact_sheet_for_each_class() -> None:
    found = outputs(run("move.mp4", "--top-k", "2"))
    names = [
        f"move.mp4.{name}" for name in ("0-red.mp4", "2-blue.mp4", "0-red.sheet.png", "2-blue.sheet.png")
    ]
    assert found == [f"saliency/{name}" for name in names]
    assert [parse_result_name(Path(name)) for name in names] == [(Path("move.mp4"), k) for k in (0, 2, 0, 2)]
    assert all(map(read_facts, map(Path, found)))
    frames = read_video(Path(found[0]))
    assert (len(frames), frames[0].size) == (20, (SIDE, SIDE))
    facts = read_facts(Path(found[1]))
    assert (facts["class"], facts["layer"], facts["input"]) == ("2 blue", "2", "move.mp4")
    assert read_facts(Path(found[3]))["class"] == "2 blue"
    (record,) = records(Path("saliency"))
    assert record["clips"] == {
        "starts": [0, 8, 12],
        "frames": 8,
        "frame_rate": 10.0,
        "total": 20,
        "start": 0.0,
    }
    assert [one["name"] for one in record["classes"]] == ["red", "blue"]


def test_the_map_follows_the_square() -> None:
    """The marginal map of red is the red of the pixels, over its sum in the clip."""
    write_frames(Path("clip"), moving_square(20))
    run("clip", "--target", "red", "--marginal", "--raw", "--style", "heatmap", "--cmap", "gray")
    with np.load("saliency/clip.maps+marginal.npz") as arrays:
        maps, times, mass = arrays["maps"][0], arrays["times"], arrays["mass"]
        scores = arrays["scores"]
    frames = [i for start in (0, 8, 12) for i in range(start, start + 8)]
    red = np.stack([np.asarray(moving_square(20)[i])[..., 0] for i in frames]) / 255
    np.testing.assert_allclose(maps, red / red.sum(), atol=1e-6)
    np.testing.assert_allclose(times, [i / 10 for i in frames])
    np.testing.assert_allclose(mass, 1, atol=1e-5)
    means = 20 * np.array([64, 0, 16]) / SIDE**2
    np.testing.assert_allclose(scores, [np.exp(means[0]) / np.exp(means).sum()], rtol=1e-4)
    drawn = brightness(Path("saliency/clip.0-red+marginal.mp4"))
    for number, frame in enumerate(drawn):
        inside = frame[5 : 3 + SQUARE, left(number) + 1 : left(number) + SQUARE - 1]
        assert inside.min() > 200
        outside = frame.copy()
        outside[2 : 6 + SQUARE, max(0, left(number) - 2) : left(number) + SQUARE + 2] = 0
        assert outside.max() < 40


def test_scores_are_the_average_over_clips() -> None:
    """Half of the video is red, the other half green, a little less bright: neither half decides alone."""
    halves = [Image.new("RGB", (SIDE, SIDE), color) for color in ((200, 0, 0), (0, 100, 0)) for _ in range(8)]
    write_frames(Path("halves"), halves)
    run("halves", "--target", "red", "--target", "green")
    scores = [one["score"] for one in records(Path("saliency"))[0]["classes"]]
    logits = 20 / 255 * np.array([[200, 0, 0], [0, 100, 0]])
    each = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(scores, each.mean(0)[:2], rtol=1e-4)


def test_cells_in_time_are_interpolated_to_the_frames() -> None:
    """A flash in frames 2 and 3 of 8 is one of four cells: frame by frame, between the cells' centers."""
    flash = [Image.new("RGB", (SIDE, SIDE), (255 if i in (2, 3) else 0, 0, 0)) for i in range(8)]
    write_frames(Path("flash"), flash)
    arguments = ("--target", "red", "--marginal", "--style", "heatmap", "--cmap", "gray")
    outputs(run("flash", *arguments, model="pooled"))
    drawn = brightness(Path("saliency/flash.0-red+marginal.mp4")).mean((1, 2)) / 255
    np.testing.assert_allclose(drawn, [0, 0.25, 0.75, 0.75, 0.25, 0, 0, 0], atol=0.03)


def test_all_frames_share_one_scale() -> None:
    fading = [Image.new("RGB", (SIDE, SIDE), (level, 0, 0)) for level in (255, 128, 0, 64, 0, 0, 0, 0)]
    write_frames(Path("fading"), fading)
    outputs(run("fading", "--target", "red", "--marginal", "--style", "heatmap", "--cmap", "gray"))
    drawn = brightness(Path("saliency/fading.0-red+marginal.mp4")).mean((1, 2))
    np.testing.assert_allclose(drawn, [255, 128, 0, 64, 0, 0, 0, 0], atol=6)


def test_the_panel_is_one_contact_sheet_of_all_classes() -> None:
    (found,) = outputs(run("move.mp4", "--top-k", "2", "--panel", "--format", "jpg"))
    assert found == "saliency/move.mp4.panel.jpg"
    assert parse_result_name(Path("move.mp4.panel.jpg")) == (Path("move.mp4"), None)
    outputs(run("move.mp4", "-o", "one.png"))
    with Image.open(found) as both, Image.open("one.png") as one:
        assert both.height > 1.5 * one.height


def test_a_contact_sheet_shows_twelve_frames_at_most(written: list[tuple[float, float, str]]) -> None:
    """Evenly spread, from the first frame to the last, each with its map."""
    write_video(Path("long.mp4"), moving_square(40))
    (found,) = outputs(run("long.mp4", "--target", "red", "--panel", "--style", "heatmap", "--cmap", "gray"))
    with Image.open(found) as opened:
        figure = np.asarray(opened.convert("L")).astype(float)
    tiles = [(int(x), int(y), text) for x, y, text in written if text.endswith(" s")]
    frames = [round(10 * float(text.removesuffix(" s"))) for *_, text in tiles]
    assert (len(frames), frames[0], frames[-1]) == (12, 0, 39)
    assert set(np.diff(frames)) <= {3, 4}
    for (x, y, _), frame in zip(tiles, frames, strict=True):
        shown = figure[y + 20 : y + 310, x : x + 300]  # below the time, 300 pixels for 32
        bright = np.flatnonzero(shown[60] > 128)
        middle = (bright.min() + bright.max() + 1) / 2 * SIDE / 300
        assert middle == pytest.approx(left(frame) + SQUARE / 2, abs=1)


def test_every_second_clip_and_a_part() -> None:
    outputs(run("move.mp4", every="2"))
    assert len(read_video(Path("saliency/move.mp4.0-red.mp4"))) == 8
    outputs(run("move.mp4", "--start", "1", "--duration", "0.5", "-o", "part"))
    assert len(read_video(Path("part/move.mp4.0-red.mp4"))) == 5
    assert records(Path("part"))[0]["clips"]["start"] == 1.0


def test_without_the_package_animations_become_webp(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = moving_square(12)
    first.save("move.gif", save_all=True, append_images=others, duration=100)
    monkeypatch.setitem(sys.modules, "av", None)
    found = outputs(run("move.gif"))
    assert found == ["saliency/move.gif.0-red.webp", "saliency/move.gif.0-red.sheet.png"]
    assert read_facts(Path(found[0]))
    with Image.open(found[0]) as animation:
        assert animation.n_frames == 12
        animation.seek(5)
        animation.load()
        assert animation.info["duration"] == 100
        shown = np.asarray(animation.convert("RGB"), int)
    assert shown[4 : 4 + SQUARE, left(5) + 1 : left(5) + SQUARE - 1][..., 2].mean() > 120  # violet, not red
    assert read_facts(Path(found[0]))["class"] == "0 red"
    failed = run("move.mp4")
    assert failed.exit_code == 1
    assert "move.mp4: this needs the package av: pip install 'eb-saliency[video]'" in failed.stderr


def test_a_run_is_resumed() -> None:
    write_frames(Path("clips/a"), moving_square(8))
    arguments = ("move.mp4", "clips", "--skip-existing", "--report")
    assert len(outputs(run(*arguments))) == 4
    again = run(*arguments)
    assert (again.stdout, again.exit_code) == ("", 0)
    assert "2 videos: 2 up to date" in again.stderr
    moving_square(2)[1].save("clips/a/frame1.png")
    assert outputs(run(*arguments)) == ["saliency/a.0-red.mp4", "saliency/a.0-red.sheet.png"]
    assert outputs(run(*arguments, every="2"))  # other clips are other results
    page = Path("saliency/report/index.html").read_text()
    assert "a.0-red.sheet.png" in page
    assert len(list(Path("saliency/report/thumbnails").rglob("*photo.jpg"))) >= 2


def test_an_interrupt_does_not_wait_for_a_long_video() -> None:
    """Of its three clips, one is being explained when Ctrl-C is pressed."""
    with Path("nets.py").open("a", encoding="utf-8") as file:
        file.write("""
def interrupted():
    import os, signal
    def count(*_):
        handler = signal.getsignal(signal.SIGINT)
        if getattr(handler, "__module__", "") == "ebcli.cli.execution":  # the run has begun
            with open("calls", "a") as file:
                file.write("x")
            if os.path.getsize("calls") == CALL:
                os.kill(os.getpid(), signal.SIGINT)
    net = colors()
    net.register_forward_pre_hook(count)
    return net
""")
    for call in (1, 4):  # to find the class, and to explain it
        Path("calls").write_text("")
        Path("nets.py").write_text(Path("nets.py").read_text() + f"\nCALL = {call}\n")
        result = run("move.mp4", "--batch-size", "1", model="interrupted")
        assert result.exit_code == 130
        assert "Interrupted. 1 video: 1 left" in result.stderr
        assert len(Path("calls").read_text()) == call
    assert len(outputs(run("move.mp4", "--skip-existing"))) == 2


def test_stills_and_truncated_videos_fail_alone() -> None:
    moving_square(1)[0].save("still.png")
    Path("cut.mp4").write_bytes(Path("move.mp4").read_bytes()[:-400])
    result = run("still.png", "cut.mp4", "move.mp4")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    assert (
        "still.png: it is a still image: give a video, an animation or a directory of numbered frames"
        in result.stderr
    )
    assert "cut.mp4: it" in result.stderr
    assert "truncated" in result.stderr


def test_a_directory_of_photos_has_no_videos() -> None:
    write_frames(Path("photos"), moving_square(3))
    Path("photos/frame2.png").rename("photos/other.png")
    result = run("photos")
    assert result.exit_code == 2
    assert (
        "no videos found in 'photos', only 3 other files: name a video, or a directory that holds"
        in result.stderr
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "kind"), [("out.mp4", "MP4"), ("out.webp", "WEBP"), ("new/out.png", "PNG"), ("out.jpg", "JPEG")]
)
def test_one_result_is_that_very_file(name: str, kind: str) -> None:
    assert outputs(run("move.mp4", "-o", name)) == [name]
    assert read_facts(Path(name))
    if kind == "MP4":
        assert len(read_video(Path(name))) == 20
    else:
        with Image.open(name) as picture:
            assert picture.format == kind
            assert getattr(picture, "n_frames", 1) == (20 if kind == "WEBP" else 1)
    assert not Path("saliency").exists()


def test_pictures_are_no_videos() -> None:
    moving_square(1)[0].save("still.png")
    result = CliRunner().invoke(main, ["still.png", "-o", "out.mp4"])
    assert result.exit_code == 2
    assert "pictures cannot be written as .mp4: choose .png, .jpg or .webp" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--annotations", "boxes"), "--annotations marks regions of images"),
        (("--style", "mask"), "--style mask needs transparency"),
        (("--fit", "pad"), "drop --fit"),
    ],
)
def test_options_for_images_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = run("move.mp4", *arguments)
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.one_in(2)
@pytest.mark.parametrize("style", ["heatmap", "side-by-side", "contour", "paper"])
def test_all_styles_and_odd_sizes_are_drawn(style: str) -> None:
    odd = [frame.resize((33, 27)) for frame in moving_square(9)]
    write_frames(Path("odd"), odd)
    outputs(run("odd", "--style", style, "--scale", "run", "--max-side", "31"))
    assert len(read_video(Path("saliency/odd.0-red.mp4"))) == 9


def test_frames_of_other_sizes_are_drawn_in_that_of_the_first() -> None:
    changing = [frame.resize((64, 48)) if 4 <= i < 8 else frame for i, frame in enumerate(moving_square(12))]
    write_frames(Path("changing"), changing)
    outputs(run("changing"))
    assert [frame.size for frame in read_video(Path("saliency/changing.0-red.mp4"))] == [(SIDE, SIDE)] * 12


@pytest.mark.release  # those of longer videos are a default test of test_films.py
def test_processes_make_the_same_files() -> None:
    write_frames(Path("clips/a"), moving_square(9))
    write_frames(Path("clips/b"), moving_square(12))
    here = outputs(run("clips", "-o", "here", "--raw"))
    there = outputs(run("clips", "-o", "there", "--raw", workers=1))
    assert [Path(name).relative_to("here") for name in here] == [
        Path(name).relative_to("there") for name in there
    ]
    for one, other in zip(map(Path, here), map(Path, there), strict=True):
        if one.suffix == ".mp4":  # the encoder does not promise equal bytes
            pairs = zip(read_video(one), read_video(other), strict=True)
            assert all(np.abs(np.asarray(a, int) - np.asarray(b, int)).mean() < 1 for a, b in pairs)
        else:
            assert one.read_bytes() == other.read_bytes()


def test_a_wrong_label_is_told_from_the_prediction_in_all_clips() -> None:
    Path("labels.csv").write_text("move.mp4,blue\n")
    result = run("move.mp4", "--labels", "labels.csv", "--raw")
    assert "move.mp4: labeled blue, predicted red (" in result.stderr
    (record,) = records(Path("saliency"))
    told = [(one["name"], one["against"]) for one in record["classes"]]
    assert told == [("blue", None), ("red", None), ("red", "blue")]
    outputs(run("move.mp4", "--target", "red", "--against", "blue", "--raw", "-o", "apart"))
    with np.load("saliency/move.mp4.npz") as labeled, np.load(next(Path("apart").glob("*.npz"))) as apart:
        np.testing.assert_allclose(labeled["maps"][2], apart["maps"][0], atol=1e-7)
    assert outputs(result)[2].endswith(".0-red-2.mp4")

"""Videos by networks for images: each frame is explained, with one question, one scale and the source's times."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from click.testing import CliRunner, Result
from color_net import BLUE, RED, SIDE, painted
from numpy.typing import NDArray
from PIL import Image
from runs import records
from videos import (
    add_sound,
    break_packet,
    moving_square,
    read_video,
    rotated,
    times_of,
    write_frames,
    write_uneven,
    write_video,
)

import ebcli
from ebcli.cli.saliency import main
from ebcli.datatypes.explanation import Map
from ebcli.errors import ImageError
from ebcli.files.encoding import read_facts
from ebcli.files.naming import UNFINISHED
from ebcli.run import film_rendering, films

NETS = """
import sys
from ebcli import Preprocessing
from color_net import color_net
import color_tasks

def count(*_):
    with open("calls.txt", "a") as calls:
        calls.write("x")

def colors():
    '''Logits are 20 times the mean of red, green and blue, so a marginal map is the brightness of its color.'''
    net = color_net()
    net.preprocessing = Preprocessing(resize=32, crop=32, mean=0.0, std=1.0)
    net.categories = ["red", "green", "blue"]
    net.register_forward_hook(count)
    return net

detector, segmenter = color_tasks.detector, color_tasks.Segmenter
"""
SMALL_PARTS = "import ebcli.files.media.film as film\nfilm.PART = 6\n"


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    write_video(Path("move.mp4"), moving_square(20))
    return tmp_path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.files.media.film.PART", 6)


def run(*arguments: str, model: str = "colors", layer: str | None = "2", workers: int = 0) -> Result:
    options = ["--model", f"nets.py:{model}", "--workers", str(workers)]
    if layer is not None:
        options += ["--layer", layer]
    return CliRunner().invoke(main, [*options, *arguments])


def outputs(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


GRAY = ("--style", "heatmap", "--cmap", "gray", "--marginal", "--target", "red")


def levels(path: Path) -> NDArray[np.floating]:
    """The gray values (frames, h, w) of a video drawn as a gray heatmap."""
    return np.stack([np.asarray(frame.convert("L"), float) for frame in read_video(path)])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


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


@pytest.mark.parametrize(("suffix", "kind"), [("gif", "GIF"), ("webp", "WEBP"), ("png", "PNG")])
def test_animations_keep_their_format_and_delays(suffix: str, kind: str) -> None:
    first, *others = moving_square(6)
    delays = [100, 200, 100, 300, 100, 100]
    first.save(f"move.{suffix}", save_all=True, append_images=others, duration=delays, loop=0)
    (path, _) = outputs(run(f"move.{suffix}", "--target", "red", "--caption"))
    assert path == f"saliency/move.{suffix}.0-red.{suffix}"
    assert read_facts(Path(path))["class"] == "0 red"
    with Image.open(path) as result:
        assert (result.format, result.n_frames) == (kind, 6)
        found = []
        for number in range(6):
            result.seek(number)
            result.load()
            found.append(result.info["duration"])
    assert found == pytest.approx(delays, abs=10)


def test_a_still_gif_is_a_picture() -> None:
    moving_square(1)[0].save("still.gif")
    assert outputs(run("still.gif")) == ["saliency/still.gif.0-red.png"]


@pytest.mark.parametrize("name", ["out.mp4", "out.webm", "out.gif", "out.webp", "out.apng"])
def test_one_video_goes_to_a_file(name: str) -> None:
    assert outputs(run("move.mp4", "-o", name)) == [name]
    assert read_facts(Path(name))["input"] == "move.mp4"
    assert outputs(run("move.mp4", "-o", name)) == [name]  # which is this program's own
    assert not Path(UNFINISHED).exists()
    refused = run("move.mp4", "-o", "out.jpg")
    assert refused.exit_code == 2
    assert "'out.jpg' cannot hold a video: choose .mp4, .webm, .gif, .webp or .apng" in refused.stderr


def sound(path: Path) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """The times and the values of the samples of a file."""
    with av.open(path) as container:
        frames = list(container.decode(audio=0))
    times = [frame.time + np.arange(frame.samples) / frame.rate for frame in frames]
    return np.concatenate(times), np.concatenate([frame.to_ndarray()[0] for frame in frames])


def span_of_sound(path: Path) -> tuple[float, float]:
    times, _ = sound(path)
    return times[0], times[-1]


def sound_packets(path: Path) -> list[bytes]:
    with av.open(path) as container:
        return [bytes(packet) for packet in container.demux(audio=0) if packet.size]


def test_sound_is_copied_or_encoded_again() -> None:
    add_sound(Path("move.mp4"), Path("loud.mp4"), 2)
    outputs(run("loud.mp4", "-o", "out.mp4"))
    assert sound_packets(Path("out.mp4")) == sound_packets(Path("loud.mp4"))
    outputs(run("loud.mp4", "-o", "out.webm"))
    with av.open("out.webm") as container:
        assert container.streams.audio[0].codec_context.name in ("opus", "libopus")
    assert span_of_sound(Path("out.webm")) == pytest.approx((0, 2), abs=0.05)


def test_broken_sound_costs_the_sound() -> None:
    add_sound(Path("move.mp4"), Path("loud.mp4"), 2)
    content = Path("loud.mp4").read_bytes()
    for packet in sound_packets(Path("loud.mp4")):
        content = content.replace(packet, b"\xff" * len(packet))
    Path("loud.mp4").write_bytes(content)
    result = run("loud.mp4", "-o", "out.mp4")
    assert "loud.mp4: its sound cannot be read, so it is left out" in result.stderr
    assert times_of(Path("out.mp4")) == times_of(Path("loud.mp4"))


@pytest.mark.parametrize("name", ["part.mp4", "part.webm"])
def test_a_part_has_its_own_sound(name: str) -> None:
    """The tone begins at 1.2 s, so in a part from 0.7 s on at 0.5 s."""
    add_sound(Path("move.mp4"), Path("loud.mp4"), 2, silence=1.2)
    outputs(run("loud.mp4", "--start", "0.7", "--duration", "1", "-o", name))
    assert span_of_sound(Path(name)) == pytest.approx((0, 1), abs=0.05)
    times, samples = sound(Path(name))
    assert times[np.abs(samples) > 0.3].min() == pytest.approx(0.5, abs=0.05)


def test_frames_are_turned_as_their_file_says() -> None:
    """After a clockwise turn, what was on the left is above."""
    left_half = painted((64, 32), (RED, (0, 0, 32, 32)))
    write_video(Path("lying.mp4"), [left_half] * 5)
    Path("turned.mp4").write_bytes(rotated(Path("lying.mp4").read_bytes(), 32))
    outputs(run("turned.mp4", *GRAY, "-o", "out.mp4"))
    values = levels(Path("out.mp4"))
    assert values.shape == (5, 64, 32)
    assert values[:, 4:28].min() > 230
    assert values[:, 36:60].max() < 25


def test_pixels_that_are_not_square_are_those_of_the_source() -> None:
    with av.open("wide.mkv", "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)
        for frame in moving_square(5):
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    outputs(run("wide.mkv", "-o", "out.mp4"))
    assert read_video(Path("out.mp4"))[0].size == (64, 32)


def test_a_broken_frame_costs_that_frame() -> None:
    write_video(Path("intra.mp4"), moving_square(20), codec="mpeg4", g="1")
    with av.open("intra.avi", "w") as container:  # each frame by itself
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
        for frame in moving_square(20):
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    break_packet(Path("intra.avi"), Path("broken.avi"), 7)
    result = run("broken.avi", "--target", "red")
    assert result.exit_code == 1
    assert "broken.avi: 1 broken frame left out: the frame before stays" in result.stderr
    times = times_of(Path("saliency/broken.avi.0-red.mp4"))
    assert times == pytest.approx([i / 10 for i in range(20) if i != 7], abs=1e-3)
    (record,) = records(Path("saliency"))
    assert (record["status"], record["film"]["frames"], record["film"]["broken"]) == ("done", 19, 1)


def test_a_broken_file_of_a_directory_costs_that_frame() -> None:
    write_frames(Path("shots"), moving_square(8))
    Path("shots/frame3.png").write_bytes(b"broken")
    result = run("shots", "--frames", "4", "--target", "red")
    assert result.exit_code == 1
    assert "1 broken frame left out" in result.stderr
    assert times_of(Path("saliency/shots.0-red.mp4")) == pytest.approx([0, 0.25, 0.75, 1, 1.25, 1.5, 1.75])


def test_a_directory_of_broken_files_says_what_is_wrong_with_them() -> None:
    write_frames(Path("shots"), moving_square(2))
    for path in Path("shots").iterdir():
        path.write_bytes(b"broken")
    result = run("shots", "--frames", "4")
    assert "its frame frame1.png: not an image that Pillow can read" in result.stderr


def test_each_process_reads_frames_as_the_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether truncated images are read is a setting of each thread, so a new one stands for another process."""

    def call_in_thread(_: Any, function: Any, *arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *arguments).result()

    monkeypatch.setattr("ebcli.workers.Workers.call", call_in_thread)
    write_frames(Path("shots"), moving_square(8))
    content = Path("shots/frame3.png").read_bytes()
    Path("shots/frame3.png").write_bytes(content[: len(content) - 40])
    _, table = outputs(run("shots", "--frames", "4", "--allow-truncated"))
    assert len(rows(Path(table))) == 8


def test_a_changed_file_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = films._FilmRun._explain

    def change(film: Any, images: Any) -> Any:
        write_video(Path("move.mp4"), moving_square(30))
        return explain(film, images)

    monkeypatch.setattr(films._FilmRun, "_explain", change)
    assert "move.mp4: the file changed during the run" in run("move.mp4").stderr


def test_of_a_truncated_video_what_can_be_read_is_explained() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 64, 64, 3), np.uint8)
    write_video(Path("whole.mkv"), [Image.fromarray(pixels) for pixels in noise])
    content = Path("whole.mkv").read_bytes()
    Path("cut.mkv").write_bytes(content[: len(content) // 2])
    result = run("cut.mkv", "--target", "red")
    assert result.exit_code == 1
    assert "so it is truncated or broken" in result.stderr
    count = len(read_video(Path("saliency/cut.mkv.0-red.mp4")))
    assert 5 < count < 35
    (record,) = records(Path("saliency"))
    assert (record["status"], record["film"]["frames"]) == ("done", count)
    assert "truncated" in record["problem"]


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
    deadline = time.monotonic() + 120
    while not [*Path("out").glob(f"{UNFINISHED}/*/000003.npz")] and time.monotonic() < deadline:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
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


@pytest.mark.parametrize("changed", ["question", "style", "file", "report", "nothing"])
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
    data = (
        json.loads(page.partition('id="data">')[2].partition("</script>")[0])
        if 'id="data">' in page
        else None
    )
    assert data is None or all(image["outcomes"][0]["photo"] for image in data["images"])


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


def test_a_video_can_come_from_stdin() -> None:
    options = ["--model", "nets.py:colors", "--layer", "2", "--workers", "0", "--target", "red"]
    runner = CliRunner()
    result = runner.invoke(main, [*options, "-", "-o", "out.mp4"], input=Path("move.mp4").read_bytes())
    assert outputs(result) == ["out.mp4"]
    assert times_of(Path("out.mp4")) == times_of(Path("move.mp4"))
    assert read_facts(Path("out.mp4"))["input"] == "stdin"


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

"""Files of videos by networks for images: animations, sound, pixels that are turned, and broken files."""

import io
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from click.testing import CliRunner
from color_net import RED, painted
from films import GRAY, NETS, levels, outputs, rows, run
from numpy.typing import NDArray
from PIL import Image
from runs import records
from videos import (
    add_sound,
    break_packet,
    fill_folder,
    moving_square,
    read_video,
    rotated,
    times_of,
    write_frames,
    write_video,
)

from ebcli.cli.saliency import main
from ebcli.files.encoding import read_facts
from ebcli.files.naming import UNFINISHED
from ebcli.run import films


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fill_folder(tmp_path, NETS)
    return tmp_path


@pytest.mark.parametrize(("suffix", "kind"), [("gif", "GIF"), ("webp", "WEBP"), ("png", "PNG")])
def test_animations_keep_their_format_and_delays(
    suffix: str, kind: str, written: list[tuple[float, float, str]]
) -> None:
    first, *others = moving_square(6)
    delays = [100, 200, 100, 300, 100, 100]
    first.save(f"move.{suffix}", save_all=True, append_images=others, duration=delays, loop=0)
    (path, _) = outputs(run(f"move.{suffix}", "--target", "red", "--caption"))
    letters = [text[:1] for *_, text in written]
    assert letters[:4] == ["r", ""] * 2  # of each frame red, and no strength, as no evidence is judged
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["out.mp4", "out.webm", "out.gif", "out.webp", "out.apng"])
def test_one_video_goes_to_a_file(name: str) -> None:
    assert outputs(run("move.mp4", "-o", name)) == [name]
    assert read_facts(Path(name))["input"] == "move.mp4"
    assert outputs(run("move.mp4", "-o", name)) == [name]  # which is this program's own
    assert not Path(UNFINISHED).exists()
    refused = run("move.mp4", "-o", "out.jpg")
    assert refused.exit_code == 2
    assert "'out.jpg' cannot hold a video: choose .mp4, .webm, .gif, .webp or .apng" in refused.stderr


def test_a_video_goes_to_stdout() -> None:
    refused = run("move.mp4", "-o", "-", "--format", "jpg")
    assert refused.exit_code == 2
    assert "add --format webp" in refused.stderr
    written = run("move.mp4", "-o", "-", "--format", "webp")
    with Image.open(io.BytesIO(written.stdout_bytes)) as film:
        assert film.n_frames > 1


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


def test_a_video_can_come_from_stdin() -> None:
    options = ["--model", "nets.py:colors", "--layer", "2", "--workers", "0", "--target", "red"]
    runner = CliRunner()
    result = runner.invoke(main, [*options, "-", "-o", "out.mp4"], input=Path("move.mp4").read_bytes())
    assert outputs(result) == ["out.mp4"]
    assert times_of(Path("out.mp4")) == times_of(Path("move.mp4"))
    assert read_facts(Path("out.mp4"))["input"] == "stdin"

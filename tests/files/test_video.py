"""Reading frames, of any kind of video, and what the network gets of them."""

import io
import os
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets.video_utils import VideoClips
from torchvision.transforms._presets import VideoClassification
from videos import SIDE, SQUARE, left, moving_square, write_frames, write_video

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.clips import ClipOptions
from ebcli.files.images import limit_pixels
from ebcli.files.media.video import Frames, frame_files, frames, sample_frames
from ebcli.files.sources import find_sources

pytestmark = pytest.mark.usefixtures("watched")

SAME = InputSpec((SIDE, SIDE), resize=(SIDE,), frames=8, rate=10.0)
CONTAINERS = {"mp4": "libx264", "mov": "libx264", "mkv": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4"}


def positions(path: Path) -> list[int]:
    """Where the red square is in each frame that is sampled."""
    found = []
    for frame in sample_frames(path, 10.0, ClipOptions()):
        red = np.asarray(frame.load())[4 : 4 + SQUARE, :, 0] > 128
        found.append(int(red.all(0).argmax()))
    return found


@pytest.mark.parametrize(("suffix", "codec"), CONTAINERS.items())
def test_video_files_are_read_frame_by_frame(suffix: str, codec: str, tmp_path: Path) -> None:
    path = tmp_path / f"move.{suffix}"
    write_video(path, moving_square(20), codec=codec)
    assert Frames().has_suffix(path)
    found = positions(path)
    assert np.abs(np.subtract(found, [left(i) for i in range(20)])).max() <= (2 if suffix == "avi" else 1)
    times = [(frame.time, frame.end) for frame in frames(path, 0)]
    assert times == [(pytest.approx(i / 10), pytest.approx((i + 1) / 10)) for i in range(20)]


@pytest.mark.parametrize("suffix", ["gif", "png", "webp"])
def test_animations_are_read_with_their_delays(suffix: str, tmp_path: Path) -> None:
    path, images = tmp_path / f"move.{suffix}", moving_square(8)
    images[0].save(path, save_all=True, append_images=images[1:], duration=[100, 300] * 4, lossless=True)
    assert Frames().recognizes(path)
    assert positions(path) == [0, 1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7, 7, 7]


def test_a_directory_of_numbered_images_is_one_video(tmp_path: Path) -> None:
    write_frames(tmp_path / "clip", moving_square(12), first=3)
    assert [path.name for path in frame_files(tmp_path / "clip")] == [f"frame{i}.png" for i in range(3, 15)]
    assert positions(tmp_path / "clip") == list(range(12))
    sources = find_sources([tmp_path], as_one=[Frames()])
    assert [(source.path, source.is_explicit) for source in sources] == [(tmp_path / "clip", False)]
    (source,) = find_sources([tmp_path / "clip"], as_one=[Frames()])
    assert (source.path, source.is_explicit) == (tmp_path / "clip", True)
    assert len(find_sources([tmp_path])) == 12  # for networks that explain images
    before = sources[0].stamp()
    Image.new("RGB", (SIDE, SIDE), "red").save(tmp_path / "clip/frame7.png")
    changed = sources[0].stamp()
    assert changed != before
    os.utime(tmp_path / "clip/frame8.png", ns=(0, changed.mtime_ns + 10**9))  # of the same size
    assert sources[0].stamp() not in (before, changed)


@pytest.mark.parametrize("change", ["gap", "other", "text", "single", "folder"])
def test_other_directories_are_searched(change: str, tmp_path: Path) -> None:
    for number, frame in enumerate(moving_square(1 if change == "single" else 5)):
        frame.save(tmp_path / f"f{number}.png")
    if change == "gap":
        (tmp_path / "f2.png").unlink()
    if change == "other":
        (tmp_path / "f2.png").rename(tmp_path / "g2.png")
    if change == "text":
        (tmp_path / "notes1.txt").touch()
    if change == "folder":
        (tmp_path / "f5.png").mkdir()
    assert frame_files(tmp_path) == []


@pytest.mark.parametrize("rate", [2.5, 5.0, 7.5, 10.0, 15.0, 30.0])
def test_the_frames_are_those_that_torchvision_samples(rate: float, tmp_path: Path) -> None:
    path = tmp_path / "move.mp4"
    write_video(path, moving_square(30, (64, SIDE)))
    shown = [round(10 * frame.time) for frame in sample_frames(path, rate, ClipOptions())]
    index = VideoClips._resample_video_idx(len(shown), 10.0, rate)
    expected = list(range(30))[index] if isinstance(index, slice) else index.tolist()
    assert shown == expected[: len(shown)]
    assert len(shown) == int(3 * rate + 0.999)


@pytest.mark.parametrize(
    ("resize", "crop", "size"),
    [((128, 171), (112, 112), (320, 240)), ((256,), (224, 224), (333, 200)), ((256,), (224, 224), (90, 400)),
     ((20,), (32, 32), (50, 40)), ((256, 256), (224, 224), (17, 9))],
)  # fmt: skip
def test_the_network_gets_what_the_preset_makes_of_a_frame(
    resize: tuple[int, ...], crop: tuple[int, int], size: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    preset = VideoClassification(crop_size=crop, resize_size=resize, mean=(0.0,) * 3, std=(1.0,) * 3)
    expected = 255 * preset(torch.from_numpy(pixels).permute(2, 0, 1)[None])[:, 0].permute(1, 2, 0).numpy()
    found = InputSpec.from_preset(preset, 16, 15).read(Image.fromarray(pixels))
    differences = np.abs(found - expected)
    assert differences.max() < 1.01
    assert (differences > 0.01).mean() < 0.002  # where a sum in another order is rounded otherwise


def test_the_placement_is_the_cropped_part() -> None:
    region = InputSpec((112, 112), resize=(128, 171), frames=16, rate=15).place((320, 240))
    assert (region.left, region.right) == (pytest.approx(30 * 320 / 171), pytest.approx(142 * 320 / 171))
    assert (region.top, region.bottom) == (8 * 240 / 128, 120 * 240 / 128)


def test_the_last_frame_of_a_short_video_is_repeated(tmp_path: Path) -> None:
    write_frames(tmp_path / "clip", moving_square(3))
    pixels, size, clips = Frames().read(tmp_path / "clip", SAME, ClipOptions())
    assert (pixels.shape, clips.starts, clips.total, size) == ((1, 8, SIDE, SIDE, 3), (0,), 3, (SIDE, SIDE))
    images = [np.asarray(image) for image in moving_square(3)]
    assert np.array_equal(pixels[0], [*images, *[images[-1]] * 5])


def test_a_part_of_a_video_is_read(tmp_path: Path) -> None:
    path = tmp_path / "move.mp4"
    write_video(path, moving_square(40, (64, SIDE)))
    part = ClipOptions(start=1.5, duration=0.8)
    assert [round(10 * frame.time) for frame in sample_frames(path, 10.0, part)] == list(range(15, 23))
    with pytest.raises(ImageError, match=r"it ends after 4\.0 s: lower --start"):
        list(sample_frames(path, 10.0, ClipOptions(start=9)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("suffix", "codec"), CONTAINERS.items())
@pytest.mark.parametrize("share", [0.9, 0.5])
def test_a_truncated_video_is_no_shorter_video(suffix: str, codec: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / f"move.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (40, 48, 64, 3), dtype=np.uint8)
    options = {"movflags": "faststart"} if suffix in ("mp4", "mov") else {}  # or nothing could be read
    write_video(path, [Image.fromarray(one) for one in noise], codec=codec, **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ImageError, match="truncated") as caught:
        Frames().read(path, SAME, ClipOptions())
    assert "--duration" in str(caught.value)
    assert Frames().read(path, SAME, ClipOptions(duration=0.8))[2].total == 8


def test_a_video_without_its_end_is_not_read_at_all(tmp_path: Path) -> None:
    path = tmp_path / "move.mp4"
    write_video(path, moving_square(20))
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ImageError, match="not a video that FFmpeg can read, or is truncated"):
        Frames().read(path, SAME, ClipOptions())


@pytest.mark.parametrize(
    "content",
    [b"", b"hello " * 100, b"#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"],
)
def test_other_content_is_refused_and_playlists_are_not_followed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(ImageError, match="not a video that FFmpeg can read"):
        Frames().read(path, SAME, ClipOptions())


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    import av

    path = tmp_path / "a.mp4"
    with av.open(path, "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), "fltp", "mono")
        frame.rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(ImageError, match="no video stream"):
        Frames().read(path, SAME, ClipOptions())


def test_still_images_are_no_videos(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    moving_square(1)[0].save(path)
    assert not Frames().recognizes(path)
    with pytest.raises(ImageError, match="it is a still image: give a video"):
        Frames().read(path, SAME, ClipOptions())


def test_huge_frames_are_refused(tmp_path: Path) -> None:
    path, before = tmp_path / "a.mp4", Image.MAX_IMAGE_PIXELS
    write_video(path, moving_square(3))
    try:
        limit_pixels(1000)
        with pytest.raises(ImageError, match="too many pixels: raise EB_SALIENCY_MAX_PIXELS"):
            Frames().read(path, SAME, ClipOptions())
    finally:
        Image.MAX_IMAGE_PIXELS = before


def test_clips_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_frames(tmp_path / "clip", moving_square(24))
    monkeypatch.setattr("ebcli.files.media.video._LARGEST_CLIPS", 16 * 3 * SIDE * SIDE)
    with pytest.raises(ImageError, match="explain a part with --duration"):
        Frames().read(tmp_path / "clip", SAME, ClipOptions())
    assert Frames().read(tmp_path / "clip", SAME, ClipOptions(every=3))[2].starts == (0,)


def gif(path: Path, size: int, count: int, delay: int) -> None:
    """A GIF of frames of one pixel each on a large canvas, with delays in hundredths of a second."""
    control = b"\x21\xf9\x04\x00" + struct.pack("<H", delay) + b"\x00\x00"
    frame = control + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    header = b"GIF89a" + struct.pack("<HHBBB", size, size, 0x80, 0, 0) + bytes(6)
    path.write_bytes(header + frame * count + b"\x3b")


@pytest.mark.parametrize(("delay", "seconds"), [(0, 0.1), (1, 0.1), (2, 0.02), (30, 0.3)])
def test_hasty_animations_are_as_slow_as_in_browsers(delay: int, seconds: float, tmp_path: Path) -> None:
    gif(tmp_path / "a.gif", 10, 5, delay)
    assert [one.time for one in frames(tmp_path / "a.gif", 10.0)] == pytest.approx(
        [seconds * i for i in range(5)]
    )


def test_a_small_animation_that_takes_hours_is_refused_at_once(tmp_path: Path) -> None:
    gif(tmp_path / "long.gif", 100, 4, 65535)
    spec = InputSpec((224, 224), resize=(224,), frames=16, rate=15.0)
    tracemalloc.start()
    with pytest.raises(ImageError, match="its clips do not fit into memory: explain a part with --duration"):
        Frames().read(tmp_path / "long.gif", spec, ClipOptions())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20
    pixels, _, clips = Frames().read(tmp_path / "long.gif", spec, ClipOptions(start=600, duration=2))
    assert pixels.shape == (2, 16, 224, 224, 3)
    assert clips.total == 30


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_frames_are_counted_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gif(tmp_path / "huge.gif", 12000, 3000, 10)
    monkeypatch.setattr(Image.Image, "copy", pytest.fail)
    with pytest.raises(ImageError, match="it has too many pixels: raise EB_SALIENCY_MAX_PIXELS"):
        Frames().read(tmp_path / "huge.gif", SAME, ClipOptions())


def test_a_phone_s_rotation_is_applied(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, moving_square(3, (64, SIDE)))
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 44  # ISO 14496-12, 8.3.2; a quarter turn clockwise
    content[matrix : matrix + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, SIDE << 16, 0, 1 << 30)
    path.write_bytes(content)
    first = next(frames(path, 0)).load()
    assert first.size == (SIDE, 64)
    turned = moving_square(1, (64, SIDE))[0].transpose(Image.Transpose.ROTATE_270)
    assert np.abs(np.asarray(first, int) - np.asarray(turned, int)).mean() < 5


def test_a_video_in_a_tar_file_or_behind_a_url_is_read_from_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, moving_square(10))
    _, _, clips = Frames().read(io.BytesIO(path.read_bytes()), SAME, ClipOptions())
    assert clips == Frames().read(path, SAME, ClipOptions())[2]


def test_without_the_package_a_video_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mp4"
    write_video(path, moving_square(3))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        ConfigurationError, match=r"this needs the package av: pip install 'eb-saliency\[video\]'"
    ):
        Frames().read(path, SAME, ClipOptions())

"""Which frames make up the clips of a video."""

import pytest

from ebcli.errors import ConfigurationError
from ebcli.files.clips import ClipOptions, Clips, clip_starts


@pytest.mark.parametrize("total", [1, 7, 8, 9, 15, 16, 17, 40])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_clips_follow_each_other_and_each_frame_has_one_map(total: int, every: int) -> None:
    starts = clip_starts(total, 8, every)
    clips = Clips(starts=starts, frames=8, frame_rate=10.0, total=total)
    explained = list(clips.explained_frames())
    numbers = [frame for frame, _, _ in explained]
    assert numbers == sorted(set(numbers))
    assert all(frame == starts[clip] + place and 0 <= place < 8 for frame, clip, place in explained)
    if every == 1:
        assert numbers == list(range(total))
    else:
        whole = [start for start in range(0, total, 8) if start + 8 <= total] or [0]
        assert list(starts) == whole[::every]


def test_times_count_from_the_start_of_the_video() -> None:
    assert Clips(starts=(0,), frames=8, frame_rate=10.0, total=20, start=2.0).time(5) == 2.5


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"every": 0}, "--every"), ({"start": -1.0}, "--start"), ({"duration": 0.0}, "--duration")],
)
def test_options_out_of_range_are_refused(options: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        ClipOptions(**options)  # type: ignore[arg-type]

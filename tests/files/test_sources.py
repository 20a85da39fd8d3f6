"""Which files a run works on: walked, filtered, each once, in an order that anybody can repeat."""

import os
import tracemalloc
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from galleries import wrote
from rights import no_override

from ebcli.files.directory import OutputFolder
from ebcli.files.records import Record
from ebcli.files.sources import find_sources


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(paths: Sequence[str], without: str | None = None, **patterns: Sequence[str]) -> list[str]:
    return [
        str(source.path)
        for source in find_sources(map(Path, paths), None if without is None else Path(without), **patterns)
    ]  # type: ignore[arg-type]


def test_directories_are_sorted_by_path_and_the_results_left_out() -> None:
    make(
        "d/b/2.jpg",
        "d/b/10.jpg",
        "d/a.png",
        "d/notes.txt",
        "d/out/a.png.1.png",
        "d/b/c/d.png",
        "d/.hidden.png",
    )
    assert names(["d/b/c/d.png", "d", "gone.jpg"], without="d/out") == [
        "d/b/c/d.png",
        "d/.hidden.png",
        "d/a.png",
        "d/b/10.jpg",
        "d/b/2.jpg",
        "d/notes.txt",
        "gone.jpg",
    ]
    assert [source.is_explicit for source in find_sources([Path("gone.jpg"), Path("d/b")])] == [
        True,
        False,
        False,
        False,
    ]


def test_a_directory_may_be_the_one_for_the_results_itself() -> None:
    make("d/a.png", "d/.eb-saliency-killed00/0")
    assert names(["d"], without="d") == ["d/a.png"]


def test_links_are_followed_and_circles_end() -> None:
    make("d/z/1.jpg", "elsewhere/2.jpg")
    Path("d/a").symlink_to("z")  # the real directory keeps its own name, though the link sorts before it
    Path("d/z/loop").symlink_to(Path.cwd() / "d")
    Path("d/z/self").symlink_to(".")
    Path("d/out").symlink_to(Path.cwd() / "elsewhere")
    Path("elsewhere/back").symlink_to(Path.cwd() / "d/z")
    Path("d/3.jpg").symlink_to("z/1.jpg")  # another name for a file is another input
    assert names(["d"]) == ["d/3.jpg", "d/z/1.jpg", "d/out/2.jpg"]


def test_what_cannot_be_an_image_is_not_passed_over_in_silence() -> None:
    make("d/a.jpg")
    os.mkfifo("d/pipe.jpg")
    Path("d/dangling.jpg").symlink_to("nowhere")
    assert names(["d"]) == ["d/a.jpg", "d/dangling.jpg", "d/pipe.jpg"]


def test_a_directory_that_cannot_be_listed_is_an_input_that_will_fail() -> None:
    Path("closed").mkdir(mode=0)
    with no_override():
        assert [(source.path, source.is_explicit) for source in find_sources([Path()])] == [
            (Path("closed"), True)
        ]


def test_the_same_file_is_taken_once_however_it_is_spelt() -> None:
    make("d/a.jpg", "d/sub/b.jpg")
    assert names(["d/a.jpg", "./d/sub/../a.jpg", f"{Path.cwd()}/d/a.jpg", "d", "d/"]) == [
        "d/a.jpg",
        "d/sub/b.jpg",
    ]


def test_two_files_are_two_however_alike_their_names_look() -> None:
    make("d/a.jpg", "elsewhere/a.jpg", "elsewhere/sub/x.jpg")
    Path("d/link").symlink_to(Path.cwd() / "elsewhere/sub")
    assert len(names(["d/link/../a.jpg", "d/a.jpg"])) == 2  # the first one is elsewhere/a.jpg


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({"include": ["*.jpg"]}, ["d/a.jpg", "d/thumbs/a.jpg"]),
        ({"exclude": ["*.jpg"]}, ["d/b.png", "d/thumbs/b.png"]),
        ({"exclude": ["thumbs"]}, ["d/a.jpg", "d/b.png"]),
        ({"include": ["thumbs"]}, ["d/thumbs/a.jpg", "d/thumbs/b.png"]),
        ({"include": ["thumbs/*.png", "a.*"]}, ["d/a.jpg", "d/thumbs/a.jpg", "d/thumbs/b.png"]),
        ({"include": ["*.jpg"], "exclude": ["thumbs"]}, ["d/a.jpg"]),
        ({"exclude": ["d"]}, ["d/a.jpg", "d/b.png", "d/thumbs/a.jpg", "d/thumbs/b.png"]),  # the user named it
    ],
)
def test_patterns(patterns: dict[str, list[str]], expected: list[str]) -> None:
    make("d/a.jpg", "d/b.png", "d/thumbs/a.jpg", "d/thumbs/b.png")
    assert names(["d"], **patterns) == expected


def test_patterns_hold_for_named_files_too() -> None:
    assert names(["x/a.jpg", "x/b.png", "y/c.jpg"], include=["*.jpg"], exclude=["y"]) == ["x/a.jpg"]


def test_pictures_of_this_program_are_skipped_and_those_named_with_a_word() -> None:
    make("d/a.jpg", "d/a.jpg.6.png")
    with OutputFolder(Path("d"), overwrite=False) as folder:
        record = wrote(Record("a.jpg", "done", place="a.jpg"), "a.jpg.5-cat.png")
        folder.add({Path("a.jpg.5-cat.png"): b"1234"}, record)
        folder.add({Path("report/thumbnails/ab.0-photo.jpg"): b"small"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(["d"], include=["*.jpg", "*.png"]) == ["d/a.jpg", "d/a.jpg.6.png"]
    with pytest.warns(
        UserWarning, match=r"skipped 1 file that this program wrote, such as 'd/a\.jpg\.5-cat\.png'"
    ):
        assert names(["d/a.jpg.5-cat.png", "d/a.jpg"]) == ["d/a.jpg"]


def test_directories_of_the_user_are_searched_whatever_their_names() -> None:
    make("d/.eb-saliency-notes/a.jpg", "d/.eb-saliency-0123abcd/b.jpg")
    assert names(["d"]) == ["d/.eb-saliency-notes/a.jpg"]


def test_shards_are_disjoint_complete_and_about_equal() -> None:
    make(*(f"d/{number % 7}/{number}.jpg" for number in range(400)))
    whole = names(["d"])
    parts = [[str(source.path) for source in find_sources([Path("d")], shard=(i, 4))] for i in range(1, 5)]
    assert sorted(path for part in parts for path in part) == sorted(whole)
    assert all(70 < len(part) < 130 for part in parts)  # 100 each, give or take 3.5 standard deviations
    assert all(part == [path for path in whole if path in part] for part in parts)


@pytest.mark.parametrize(
    ("path", "of_3", "of_1000"), [("photos/a.jpg", 2, 178), ("photos/b.jpg", 3, 489), ("é/c d.png", 1, 778)]
)
def test_the_same_file_is_in_the_same_shard_in_every_version(path: str, of_3: int, of_1000: int) -> None:
    """By the hash of its path below the output directory that ``printf %s PATH | b2sum --length 64`` prints."""
    make(path)
    for count, expected in ((3, of_3), (1000, of_1000)):
        shards = {1, 2, expected - 1, expected, expected + 1, count} & set(range(1, count + 1))
        assert [i for i in shards if find_sources([Path(path)], shard=(i, count))] == [expected]


@pytest.mark.release
def test_a_shard_does_not_hold_the_whole_listing() -> None:
    make(*(f"d/{number % 100}/{number}.jpg" for number in range(2_000)))

    def peak(shard: tuple[int, int] | None) -> int:
        tracemalloc.start()
        found = find_sources([Path("d")], shard=shard)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found
        return size

    peak((3, 50))  # imports what the first call needs
    assert peak((3, 50)) < peak(None) / 15


def test_absolute_paths_are_named_after_their_folder_unless_two_would_be_alike(
    working_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make("here/a.jpg")
    other = tmp_path_factory.mktemp("data")
    for name in ("x/a.jpg", "x/b.jpg", "y/x/a.jpg", "absolute/a.jpg"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).touch()

    def places(*paths: Path | str) -> list[str]:
        return [source.relpath.as_posix() for source in find_sources(map(Path, paths))]

    assert places(other / "x/a.jpg", other / "x/b.jpg", "here/a.jpg") == ["x/a.jpg", "x/b.jpg", "here/a.jpg"]
    assert places(working_directory / "here/a.jpg") == ["here/a.jpg"]
    first, second, third = places(other / "x/a.jpg", other / "y/x/a.jpg", other / "x/b.jpg")
    assert first != second and third == "x/b.jpg"
    assert all(place.startswith(("parent", "absolute")) for place in (first, second))
    assert places(other / "absolute/a.jpg")[0].count("absolute") == 1  # which is no place of another input
    assert places(other / "x") == ["a.jpg", "b.jpg"]

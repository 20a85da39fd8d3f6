"""The command line: which plan it makes, what it prints where, and how it ends. Loads no model."""

import dataclasses
import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from plans import command_plan
from stub_run import DONE, PICTURE, finished, invoke

from ebcli.cli.saliency import main
from ebcli.files.records import Record


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("a.jpg", {}),
        ("--model vgg16 --layer features.23 a.jpg", {"model": "vgg16", "layer": ("features.23",)}),
        ("--layer features.23 --layer input a.jpg", {"layer": ("features.23", "input")}),
        (
            "--layer all --panel --compare-with marginal a.jpg",
            {"layer": ("all",), "panel": True, "compare_with": ("marginal",)},
        ),
        ("--style heatmap --signed --scale 2 a.jpg", {"style": "heatmap", "signed": True, "vmax": 2.0}),
        ("--style contour --scale 0.5,run a.jpg", {"style": "contour", "scale": "run", "vmin": 0.5}),
        ("--scale 99% a.jpg", {"percentile": 99.0}),
        ("--weights none --resize 72 --crop 64 a.jpg", {"weights": "none", "resize": 72, "crop": 64}),
        ("--mean 0.5 --std 0.25,0.5,0.125 a.jpg", {"mean": (0.5,), "std": (0.25, 0.5, 0.125)}),
        (f"--class-names {__file__} a.jpg", {"class_names": Path(__file__)}),
        ("--marginal a.jpg", {"method": ("marginal",)}),
        ("-x GradCAM -x object a.jpg", {"method": ("grad-cam", "object")}),
        ("--target 281 --target tabby a.jpg", {"target": ("281", "tabby")}),
        ("--against tabby --against 7 a.jpg", {"against": ("tabby", "7"), "signed": True}),
        ("-o maps a.jpg", {"output": Path("maps")}),
        ("--cmap viridis --alpha 0.25 a.jpg", {"cmap": "viridis", "alpha": 0.25}),
        (
            "--include *.jpg --include b --exclude c/*.png a.jpg",
            {"include": ("*.jpg", "b"), "exclude": ("c/*.png",)},
        ),
        ("--shard 2/4 a.jpg", {"shard": (2, 4)}),
        ("--annotations boxes --threshold 0.3 a.jpg", {"annotations": "boxes", "threshold": ("max", 0.3)}),
        (
            "--annotations masks --threshold mass:0.3 a.jpg",
            {"annotations": "masks", "threshold": ("mass", 0.3)},
        ),
        ("--format webp --raw a.jpg", {"format": "webp", "raw": True}),
        ("--skip-existing --overwrite a.jpg", {"skip_existing": True, "overwrite": True}),
        ("--batch-size 7 --workers 0 a.jpg", {"batch_size": 7, "workers": 0}),
        ("a.jpg photos", {"images": (Path("a.jpg"), Path("photos"))}),
        ("-- -a.jpg", {"images": (Path("-a.jpg"),)}),
    ],
)
def test_options_become_exactly_this_plan(
    arguments: str, expected: dict[str, object], worker: mock.Mock
) -> None:
    result = invoke(*arguments.split())
    assert result.exit_code == 0, result.output
    assert worker.mock_calls == [mock.call(command_plan(**{"images": ("a.jpg",), **expected}), None)]


def test_the_short_help_has_the_common_options_and_names_the_long_one() -> None:
    short, long = invoke("-h"), invoke("--help")
    assert short.exit_code == long.exit_code == 0
    listed = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", short.output, re.MULTILINE))
    assert {"--model", "--layer", "--target", "--top-k", "--output", "--method"} <= listed
    assert {"--labels", "--against", "--config"} <= listed
    assert 10 <= len(listed) <= 18
    assert len(short.output.splitlines()) <= 60  # one screen, of 80 columns
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    commands = re.findall(
        "^eb-saliency .*", readme.partition("## Four commands")[2].partition("\n1. ")[0], re.MULTILINE
    )
    assert len(commands) == 4
    for text in (short.output, long.output):  # both start with them, and with what is explained
        heading, *lines = text.partition("\n\n")[0].splitlines()
        assert heading == "Try:"
        shown = [line.strip() for line in lines if line.startswith("  eb-saliency ")]
        assert len(shown) == 4
        assert all(map(str.startswith, shown, commands))
        assert re.search(r"^[\w ]+:\n  -t, --target ", text.partition("\n\nUsage: ")[2], re.MULTILINE)
        assert text.index("--target CLASS") < text.index("\nCommands:")
    assert "eb-saliency --help lists all" in short.output
    everything = re.findall(r"^  (?:-\w, )?--?[\w-]+", long.output.partition("\n\nUsage: ")[2], re.MULTILINE)
    assert f"all {len(everything)} options" in short.output
    assert len(everything) <= 72
    assert not re.search(r"\b(INTEGER|FLOAT|RANGE)\b|x>=", long.output)


def test_commands_list_options_as_a_run_does() -> None:
    for name, section in (("report", "Appearance"), ("layers", "Model"), ("serve", "Model")):
        listed = [
            re.findall(
                r"^  (?:-\w, )?(--[\w-]+)",
                text.partition(f"\n{section}:\n")[2].partition("\n\n")[0],
                re.MULTILINE,
            )
            for text in (invoke("--help").stdout, invoke(name, "--help").stdout)
        ]
        assert listed[0] == listed[1] != []
    for name in ("serve", "check", "audit", "report", "layers"):
        assert re.findall(r"^\w+:$", invoke(name, "--help").stdout, re.MULTILINE)[-1] == "Information:"


def test_commands_describe_what_options_mean_to_them() -> None:
    helps = {
        name: " ".join(invoke(name, "--help").stdout.split())
        for name in ("check", "compare", "doctor", "info")
    }
    assert helps["check"].count("[default: as in BASELINE]") == 7
    assert "efficientnet_lite0" not in helps["check"]
    assert not [name for name, text in helps.items() if ".png, .jpg" in text or "per image" in text]


def test_verbose_runs_tell_where_probability_was_lost(worker: mock.Mock) -> None:
    losses = {
        "conv2d in features.4": 0.25,
        "linear in head": 0.125,
        "add": 0.0625,
        "conv2d in features.2": 0.03,
    }
    shown = dataclasses.replace(DONE.classes[0], losses=losses)
    worker.return_value = finished(dataclasses.replace(DONE, classes=(shown,)))
    assert invoke("-v", "a.jpg").stderr.splitlines()[-1] == (
        "a.jpg: class 282 (tiger cat), score 0.500, mass 0.750, lost 0.250 in features.4, 0.125 in head, 0.062 in add"
        ", among others"
    )
    del losses["add"]
    worker.return_value = finished(dataclasses.replace(DONE, classes=(shown,)))
    assert invoke("-v", "a.jpg").stderr.endswith("0.125 in head, 0.030 in features.2\n")
    assert worker.call_args.args[0].maps.track_lost_mass
    invoke("a.jpg")
    assert not worker.call_args.args[0].maps.track_lost_mass


def test_a_target_wins_over_a_number_of_classes_from_the_environment(worker: mock.Mock) -> None:
    assert invoke("--target", "1", "a.jpg", EB_SALIENCY_TOP_K="3").exit_code == 0
    assert worker.call_args.args[0].maps.targets == ("1",)


def test_stdout_holds_the_paths_and_nothing_else(worker: mock.Mock) -> None:
    worker.return_value = finished(
        dataclasses.replace(DONE, output=(PICTURE, PICTURE)),
        Record("bad.jpg", "failed", error="it is broken"),
        Record("notes.txt", "not an image"),
        already=(Path("b.jpg"),),
    )
    result = invoke("--verbose", "a.jpg")
    assert result.exit_code == 1
    assert result.stdout == f"{PICTURE}\n" * 2
    for message in (
        "vgg16 (none), layer features.23, on cpu",
        "a.jpg: class 282 (tiger cat), score 0.500, mass 0.750",
        "bad.jpg: it is broken",
        "b.jpg: up to date, skipped",
        "notes.txt: not an image, skipped",
        "3 images: 1 done, 1 up to date, 1 failed; 1 other file skipped",
    ):
        assert message in result.stderr


def test_where_all_went_well_there_is_nothing_to_say(worker: mock.Mock) -> None:
    result = invoke("a.jpg")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_word_that_is_nearly_a_command_stops_with_a_hint(
    worker: mock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, near in ((["model"], "models"), (["serv", "photos"], "serve")):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert f"'{arguments[0]}' is neither a file nor a command: did you mean '{near}'?" in result.stderr
    worker.assert_not_called()
    Path("model").mkdir()
    assert "command" not in invoke("model").stderr + invoke("photo.jpg", "model").stderr


def test_json_is_the_records_and_nothing_else(worker: mock.Mock) -> None:
    worker.return_value = finished(
        DONE, Record("b.jpg", "failed", error="it is broken"), Record("c", "not an image")
    )
    result = invoke("--json", "d")
    assert result.exit_code == 1
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["schema"] == second["schema"] == 1
    assert (first["status"], first["output"]) == ("done", [PICTURE])
    unknown = (
        "value losses region box voxel world strength times_noise evidence sufficiency position span share unplaced "
        "share_at window_score against"
    )
    known = {
        "index": 282,
        "name": "tiger cat",
        "score": 0.5,
        "mass": 0.75,
        "layer": "features.23",
        "method": "",
        "peak": 3.5,
    }
    flags = {"blank": False, "at_border": False, "channels": [], "inputs": {}, "columns": {}}
    assert first["classes"] == [dict.fromkeys(unknown.split()) | known | flags]
    assert (second["status"], second["error"]) == ("failed", "it is broken")


@pytest.mark.parametrize(
    ("content", "option", "expected"),
    [
        (b"b.jpg\n\n -c d.jpg\n \nlast", [], ["b.jpg", " -c d.jpg", " ", "last"]),
        (b"\xef\xbb\xbfb.jpg\r\n\r\nc.jpg\r\n", [], ["b.jpg", "c.jpg"]),  # as editors on Windows write it
        (b"b\r\nc.jpg\n", [], ["b\r", "c.jpg"]),  # a name may end so, if others do not
        (b"b\nb.jpg\0caf\xe9.jpg\0", ["-0"], ["b\nb.jpg", os.fsdecode(b"caf\xe9.jpg")]),
    ],
)
@pytest.mark.parametrize("stdin", [True, False])
def test_lists_of_files(
    content: bytes, option: list[str], expected: list[str], stdin: bool, worker: mock.Mock, tmp_path: Path
) -> None:
    (tmp_path / "list").write_bytes(content)
    arguments = ["a.jpg", "--from-file", "-" if stdin else str(tmp_path / "list"), *option]
    result = CliRunner().invoke(main, arguments, input=content if stdin else None)
    assert result.exit_code == 0, result.output
    assert worker.call_args.args[0].inputs.images == tuple(map(Path, ["a.jpg", *expected]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-file", "no such list"], "no such list"),
        (["--from-file", "nul"], "add -0"),
        (["--from-file", os.devnull], "no image"),
        (["--shard", "3", "a.jpg"], "2/4"),
        (["--shard", "0/4", "a.jpg"], "1/4 to 4/4"),
        (["--include", "", "a.jpg"], "pattern is empty"),
    ],
)
def test_wrong_inputs_are_refused(
    arguments: list[str], message: str, worker: mock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nul").write_bytes(b"a.jpg\0b.jpg\0")
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not worker.mock_calls


def test_a_list_without_an_end_is_refused(worker: mock.Mock) -> None:
    result = invoke("--from-file", "/dev/zero")
    assert (result.exit_code, worker.mock_calls) == (2, [])
    assert result.stderr.endswith("/dev/zero is larger than 256 MiB: split it, or name directories\n")


def test_the_ranks_of_a_job_are_shards(worker: mock.Mock) -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "4"}
    result = invoke("a.jpg", **ranks)
    assert worker.call_args.args[0].inputs.shard == (2, 4)
    assert result.stderr == "Processing shard 2/4, from RANK=1 and WORLD_SIZE=4\n"
    invoke("--shard", "4/5", "a.jpg", **ranks)
    assert worker.call_args.args[0].inputs.shard == (4, 5)
    invoke("a.jpg", RANK="0", WORLD_SIZE="1")
    assert worker.call_args.args[0].inputs.shard is None


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--top-k 0 a.jpg",
        "--target 1 --top-k 2 a.jpg",
        "--marginal --against 3 a.jpg",
        "--gpus-per-worker 1 --engine ray a.jpg",
        "--engine ray --workers 0 a.jpg",
        "--engine ray --device cuda:1 a.jpg",
    ],
)
def test_wrong_usage(arguments: str, worker: mock.Mock) -> None:
    result = invoke(*arguments.split())
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not worker.mock_calls

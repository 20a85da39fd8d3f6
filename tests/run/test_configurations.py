"""Which settings make another configuration, whose results are computed anew."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from runs import photos, tiny_model

import ebcli.run.explainer
from ebcli.cli.saliency import main
from ebcli.models.loaded import configuration_hash

pytestmark = pytest.mark.usefixtures("working_directory")


def configuration(*options: str, **environment: str) -> str:
    """The hash of all settings, as the record of a run says it."""
    arguments = (
        "--model",
        "tiny",
        "--workers",
        "0",
        "--json",
        "--overwrite",
        "-o",
        "maps",
        *options,
        "photos",
    )
    result = CliRunner().invoke(main, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["configuration"])


@pytest.mark.release
def test_every_setting_that_changes_results_makes_another_configuration() -> None:
    photos(Path("photos"), 1)
    same = "--batch-size 3|--workers 1|--device cpu|--shard 1/1|--skip-existing -o other|--include *|-v"
    assert {configuration(*options.split()) for options in ["", *same.split("|")]} == {configuration()}
    assert (
        configuration(EB_SALIENCY_FAIL_FAST="1")
        == configuration()
        != configuration(EB_SALIENCY_DTYPE="bfloat16")
    )
    other = (
        "--layer 0|--layer 2 --layer 0|--layer input|--marginal|--target 3|--target 3 --target 4|--top-k 2|"
        "--above 0.1|--against 3|--against 3 --against 4|--labels one.csv|--labels two.csv|"
        "--allow-unsupported|--format webp|--max-side 20|--raw|--panel|"
        "--panel --compare-with marginal|--panel --compare-with grad-cam|--style heatmap|--cmap jet|--alpha 0.5|"
        "--signed|--scale 0.5,image|--scale 2|--scale 99%|--scale run|--annotations boxes|--annotations masks|"
        "--annotations boxes --threshold 0.3|--annotations boxes --threshold mass:0.3"
    ).split("|")
    Path("one.csv").write_text("0000.jpg,1\n")
    Path("two.csv").write_text("0000.jpg,2\n")
    found = {options: configuration(*options.split()) for options in ["", *other]}
    assert len(set(found.values())) == len(found), found
    assert configuration("--target", "class d") == found["--target 3"]


def test_classes_of_one_name_are_different_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 1)
    twins = dataclasses.replace(tiny_model(), categories=("crane", "crane", *"cdefg"))
    monkeypatch.setattr(ebcli.run.explainer, "load_model", lambda *_, **__: twins)
    assert configuration("--against", "0") != configuration("--against", "1")


def test_another_version_computes_anew_unless_only_its_patch_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 1)
    found = []
    for number in ("1.2.0", "1.2.9", "1.3.0", "2.2.0"):
        monkeypatch.setattr("importlib.metadata.version", lambda _name, number=number: number)
        found.append(configuration())
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_checkpoint_counts_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(Path("photos"), 1)
    found = []
    for name, content in (("own.pth", b"one"), ("own.pth", b"two"), ("moved.pth", b"one")):
        checkpoint = tmp_path / name
        checkpoint.write_bytes(content)
        loaded = dataclasses.replace(tiny_model(), weights=str(checkpoint), files=(checkpoint,))
        monkeypatch.setattr(ebcli.run.explainer, "load_model", lambda *_, loaded=loaded, **__: loaded)
        found.append(configuration("--weights", str(checkpoint)))
    assert found[0] == found[2] != found[1]


def test_settings_that_earlier_versions_lacked_leave_their_results_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photos(Path("photos"), 1)
    written = []

    def hash_of(settings: dict[str, dict[str, object]]) -> str:
        written.append({*settings["clips"], *settings["style"]} & {"every", "header", "frames", "smooth"})
        return configuration_hash(settings)

    monkeypatch.setattr("ebcli.run.prepare.configuration_hash", hash_of)
    configuration()
    configuration("--panel", "--no-header", "--smooth", "0.5")
    assert written == [{"every"}, {"every", "header", "smooth"}]

"""Type checkers accept a user's program, and find what is misspelt in it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ebcli
from ebcli.evaluate import pointing_hit

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("script.py").read_text(encoding="utf-8")
MISSPELT = {
    "ebcli.model_names(": "ebcli.model_name(",
    "ebcli.NonFiniteError": "ebcli.NonFinite",
    'style="mask"': 'style="masks"',
    'style="contour"': 'style="contours"',
    "found.strength\n": "found.strenght\n",
    'fit="crop"': 'fits="crop"',
    "ebcli.excitation_backprop(loaded,": 'ebcli.excitation_backprop("loaded",',
    "list[float | None]": "list[str]",
}
CHECKERS = {
    "mypy": ["mypy", "--strict", "--python-version=3.11", "--ignore-missing-imports"],
    "pyright": ["pyright", "--pythonversion=3.11", f"--pythonpath={sys.executable}"],
}


def checked(checker: str, text: str, folder: Path) -> str:
    """What a type checker prints, if it finds errors in a script."""
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    configuration = f"[mypy]\nmypy_path = {ROOT}\nfollow_imports_for_stubs = True\n"
    configuration += "[mypy-ebcli.*]\nfollow_imports = silent\n"
    (folder / "mypy.ini").write_text(configuration, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(
        f'{{"extraPaths": ["{ROOT}"], "typeCheckingMode": "standard"}}'
    )
    command = [sys.executable, "-m", *CHECKERS[checker], str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    return done.stdout if done.returncode else ""


@pytest.mark.release
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_program_of_a_user_passes_and_each_misspelling_is_found(checker: str, tmp_path: Path) -> None:
    assert checked(checker, SCRIPT, tmp_path) == ""
    wrong = SCRIPT
    for right, misspelt in MISSPELT.items():
        assert right in SCRIPT
        wrong = wrong.replace(right, misspelt)
    printed = checked(checker, wrong, tmp_path)
    lines = {number for number, line in enumerate(wrong.splitlines(), 1) if line not in SCRIPT.splitlines()}
    found = {int(one.split(":")[1]) for one in printed.splitlines() if "script.py:" in one and "error" in one}
    assert found >= lines, printed


@pytest.mark.parametrize(
    ("kind", "work"),
    [
        (ValueError, lambda: ebcli.load_model("nothing_such")),
        (ValueError, lambda: ebcli.explain(torch.nn.Identity(), torch.rand(3, 4, 4), layer="no")),
        (ValueError, lambda: pointing_hit([[1.0]], [[1, 0]])),
        (ValueError, lambda: ebcli.excitation_mode(unsupported="maybe").__enter__()),
        (TypeError, lambda: ebcli.rule(len)(None)),
        (KeyError, lambda: ebcli.unregister(torch.cumprod)),
        (RuntimeError, ebcli.disable),
    ],
)
def test_errors_are_also_of_the_built_in_kind(kind: type[Exception], work: Callable[[], object]) -> None:
    with pytest.raises(ebcli.EbcliError) as caught:
        work()
    assert isinstance(caught.value, kind)

"""What the shells offer after Tab, asked of the shells themselves."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest
from matplotlib import colormaps
from stub_run import program, run_python

from ebcli.models import model_names

SCRIPTS = sysconfig.get_path("scripts")
ROOT = Path(__file__).parents[2]

# The lines that docs/install.md adds to start-up files
LOAD = {
    "bash": 'eval "$(_EB_SALIENCY_COMPLETE=bash_source eb-saliency)"',
    "zsh": 'eval "$(_EB_SALIENCY_COMPLETE=zsh_source eb-saliency)"',
    "fish": "_EB_SALIENCY_COMPLETE=fish_source eb-saliency | source",
}

pytestmark = pytest.mark.skipif(
    not Path(SCRIPTS, "eb-saliency").exists(), reason="eb-saliency is not installed as a command"
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a cat.jpg", "a dog.jpg", "vgg.pth"):
        Path(name).touch()
    Path("a folder").mkdir()
    monkeypatch.setenv("PATH", SCRIPTS + os.pathsep + os.environ["PATH"])
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "a folder"))


def shell(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [program(name), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def in_bash(*words: str) -> list[str]:
    """What bash offers in place of the last word, and how it goes on to complete file names itself."""
    return shell(
        "bash",
        "--norc",
        "-c",
        # Tab calls the function that `complete` names; compopt works only there, so it is told here
        f'{LOAD["bash"]}; compopt() {{ echo "$@"; }}; '
        f"COMP_WORDS=(eb-saliency {shlex.join(words)}); COMP_CWORD={len(words)}; "
        'called=$(complete -p eb-saliency); called=${called#* -F }; ${called% *} eb-saliency; echo "${COMPREPLY[*]}"',
    )


def in_fish(*words: str) -> list[str]:
    line = shlex.join(("eb-saliency", *words)).removesuffix("''")
    return [
        offer.partition("\t")[0]
        for offer in shell("fish", "-c", f"{LOAD['fish']}; complete -C {shlex.quote(line)}")
    ]


# A terminal with zsh in it, where somebody types Tab, then Ctrl-A, echo, Ctrl-E and Enter
ZSH = r"""
zmodload zsh/zpty
zpty terminal zsh -f -i
zpty -w terminal 'PS1=; unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -D'
zpty -w terminal "$1"'; echo re""ady'
zpty -r terminal seen '*ready*'
zpty -n -w terminal "$2"$'\t\C-aecho offered: \C-e\n'
zpty -r terminal seen $'*\noffered: *\n'
print -r -- "$seen"
"""


def in_zsh(*words: str) -> str:
    """What stands in the line after Tab, where only one thing can."""
    shown = shell("zsh", "-f", "-c", ZSH, "-", LOAD["zsh"], shlex.join(("eb-saliency", *words)))
    (offered,) = [line for line in shown if line.startswith("offered: eb-saliency ")]
    return offered.removeprefix("offered: eb-saliency ").rstrip()


@pytest.mark.parametrize("name", LOAD)
def test_the_lines_that_are_tried_here_are_those_of_the_documentation(name: str) -> None:
    assert f"`{LOAD[name]}`" in (ROOT / "docs/install.md").read_text(encoding="utf-8").replace("\\|", "|")


@pytest.mark.release
def test_models() -> None:
    expected = [name for name in model_names() if name.startswith("vgg1")]
    assert len(expected) > 5
    assert in_bash("--model", "vgg1") == [" ".join(expected)]
    assert in_bash("--model", "no_such") == [""]
    assert in_fish("--model", "vgg1") == expected
    assert in_zsh("--model", "efficientnet_l") == "--model efficientnet_lite0"


@pytest.mark.release
def test_colormaps() -> None:
    assert in_bash("--cmap", "RdB") == ["RdBu"]
    assert in_bash("--cmap", "RdBu_") == ["RdBu_r"]
    assert in_zsh("--cmap", "viri") == "--cmap viridis"
    offered = in_fish("--cmap", "")
    assert {"inferno", "jet"} <= set(offered) < set(colormaps)


def test_weights_are_files_or_one_of_two_words() -> None:
    assert in_bash("--weights", "") == ["DEFAULT none"]
    assert in_bash("--weights", "vgg") == ["-o default", ""]
    assert in_zsh("--weights", "vg") == "--weights vgg.pth"


def test_images_are_files_and_results_directories() -> None:
    assert in_bash("--model", "vgg16", "x") == ["-o default", ""]
    assert in_zsh("--top-k", "2", "a c") == "--top-k 2 a cat.jpg"
    assert in_bash("--output", "a") == in_bash("report", "a") == ["-o dirnames", ""]
    assert in_bash("rep") == ["-o default", "report"]
    assert in_bash("a.jpg", "rep") == ["-o default", ""]
    assert in_zsh("-o", "a") == "-o a folder"


def test_options_and_choices() -> None:
    assert in_bash("--style", "p") == ["paper"]
    assert {"--json", "--compare-with"} <= set(in_fish("--"))


def test_the_measuring_command_has_models_too() -> None:
    words = {"COMP_WORDS": "eb-saliency benchmark grid --model efficientnet_l", "COMP_CWORD": "4"}
    done = subprocess.run(
        [Path(SCRIPTS, "eb-saliency")],
        env={**os.environ, **words, "_EB_SALIENCY_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "plain,efficientnet_lite0\n"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("word", ["--model vgg", "--weights ", "--style ", "a"])
def test_tab_imports_no_large_package(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"eb-saliency {word}"
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    monkeypatch.setenv("_EB_SALIENCY_COMPLETE", "bash_complete")
    printed = run_python(
        "import sys\n"
        "from ebcli.cli.saliency import main\n"
        "try:\n"
        "    main(prog_name='eb-saliency')\n"
        "except SystemExit:\n"
        "    print('imported:', sorted({'torch', 'torchvision', 'numpy', 'PIL', 'matplotlib'} & set(sys.modules)))\n"
    )
    assert printed.splitlines()[0].startswith(("plain,", "file,"))
    assert printed.splitlines()[-1] == "imported: []"

"""What the tests of the page share."""

from dataclasses import replace
from pathlib import Path

import pytest
from browser import start
from galleries import CATS, COMMON, add, append, photo

from ebcli.files.records import ClassRecord, Record
from ebcli.gallery.page import write_gallery

browser = pytest.fixture(scope="session")(start)


COFFEE = (
    ClassRecord(967, "espresso", 0.9, mass=0.5, blank=False),
    ClassRecord(968, "cup", 0.05, mass=0.5, blank=True),
)


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "maps"


@pytest.fixture
def page(maps: Path) -> Path:
    """Four inputs: two of cats, at two layers one of them; coffee, whose second map is blank; and a failure."""
    add(maps, photo(Path("cats/cat10.png"), (200, 150)))
    add(
        maps, photo(Path("cats/cat9.png"), (150, 200)), common=replace(COMMON, layer="features.9"), hot=(3, 3)
    )
    later = add(maps, Path("cats/cat9.png"), CATS[1:])
    coffee = add(maps, photo(Path("coffee.png"), (200, 150)), COFFEE)
    broken = Record("broken.png", "failed", error="it is broken: bits", place="broken.png", seconds=0.75)
    append(maps, replace(broken, model="vgg16", weights="none", layer="features.23", method="contrastive EB"))
    append(maps, replace(later, seconds=2.0), replace(coffee, seconds=0.25))
    return write_gallery(maps)

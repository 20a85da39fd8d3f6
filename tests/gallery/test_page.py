"""The page in a browser, as people use it: looking, searching, sorting, with keys."""

from dataclasses import replace
from pathlib import Path

from browser import Browser
from galleries import CATS, add, append, photo
from selenium.webdriver.common.keys import Keys

from ebcli.datatypes.explanation import Sufficiency
from ebcli.files.records import Record
from ebcli.gallery.page import write_gallery


def test_it_opens_from_disk_in_silence_and_asks_for_nothing_from_outside(
    page: Path, browser: Browser
) -> None:
    browser.open(page)
    browser.settle()
    assert browser.complaints() == []
    requests = browser.requests()
    assert len(requests) == 1 + 2 * 3  # the page; photo and map of each image but the failed one
    assert {url.split(":")[0] for url in requests} <= {"file", "data"}
    browser.run(
        "fetch('https://example.org/').catch(() => {}); new Image().src = 'https://example.org/x.png'"
    )
    blocked: list[str] = []
    browser.until(lambda: blocked.extend(browser.complaints()) or len(blocked) >= 2)
    assert all("Content Security Policy" in text for text in blocked), blocked


def test_search_filters_and_sort(page: Path, browser: Browser) -> None:
    browser.open(page)
    everything = ["broken.png", "cat9.png", "cat10.png", "coffee.png"]  # 9 is before 10
    assert browser.names() == everything
    for text, expected in (
        ("CAT1", ["cat10.png"]),
        ("egyptian", ["cat9.png", "cat10.png"]),
        ("cats cat", ["cat9.png", "cat10.png"]),
        ("cup png", ["coffee.png"]),
        ("967", ["coffee.png"]),
        ("cat10 espresso", []),
        ("", everything),
    ):
        browser.write("#query", text)
        assert browser.names() == expected, text
        assert browser.count() == len(expected)
        assert browser.one("#none").is_displayed() is not expected
    for field, option, expected in (
        ("#class", "tiger cat (2)", ["cat10.png"]),  # of cat9.png, another layer's outcome is the latest
        ("#class", "Egyptian cat (3)", ["cat9.png", "cat10.png"]),
        ("#class", "all", everything),
        ("#status", "failed", ["broken.png"]),
        ("#status", "blank map", ["coffee.png"]),
        ("#status", "done", everything[1:]),
        ("#sort", "score", ["cat9.png", "cat10.png", "coffee.png"]),
        ("#sort", "mass", ["cat10.png", "coffee.png", "cat9.png"]),
        ("#sort", "seconds", ["coffee.png", "cat10.png", "cat9.png"]),
    ):
        browser.choose(field, option)
        assert browser.names() == expected, option
    browser.one("#descending").click()
    assert browser.names() == ["cat9.png", "cat10.png", "coffee.png"]
    for field, value, expected in (
        ("#score-from", "0.5", ["cat10.png", "coffee.png"]),
        ("#score-to", "0.6", ["cat10.png"]),
        ("#mass-from", "0.3", []),
    ):
        browser.write(field, value)
        assert browser.names() == expected, field
    browser.one("#none button").click()
    assert browser.names() == everything


def test_it_tells_sufficiency_and_marks_maps_without(maps: Path, browser: Browser) -> None:
    good = Sufficiency(
        part=0.2, shuffled=0.5, center=0.35, gradient=0.6, score=0.95, without=0.07, blurred=0.01
    )
    tested = {"cat.png": good, "dog.png": replace(good, part=0.5)}
    for name, sufficiency in tested.items():
        add(maps, photo(Path(name)), [replace(CATS[0], sufficiency=sufficiency.record_fields)])
    browser.open(write_gallery(maps))
    assert [badge.text for badge in browser.all(".card .badge")] == ["sufficiency not shown"]
    browser.one(".card button").click()
    words = f"{good.words}. In the order of the gradient, 60% is needed."
    assert words in browser.one("#viewer-facts").text


def test_what_has_no_value_is_last_in_every_order(page: Path, browser: Browser) -> None:
    browser.open(page)
    for descending in (False, True):
        for field, expected in (
            ("score", ["cat9.png", "cat10.png", "coffee.png"]),
            ("mass", ["cat10.png", "coffee.png", "cat9.png"]),
        ):
            browser.choose("#sort", field)
            assert browser.names() == [*(expected[::-1] if descending else expected), "broken.png"], field
        browser.one("#descending").click()


def test_a_filter_shows_the_map_that_fits(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.choose("#status", "blank map")
    assert browser.one(".card [aria-selected=true]").text == "cup"
    assert browser.one(".card .badge").text == "blank map"
    assert "score 0.050" in browser.one(".card .facts").text
    assert not browser.all(".card .map")


def test_how_strong_a_map_is(maps: Path, browser: Browser) -> None:
    weak, clear = (
        replace(CATS[0], strength=0.25, times_noise=times, evidence=evidence)
        for times, evidence in ((1.2, "hardly any"), (3.4, "clear"))
    )
    add(maps, photo(Path("weak.png"), (200, 150)), (weak,))
    add(maps, photo(Path("clear.png"), (200, 150)), (clear,))
    browser.open(write_gallery(maps))
    told = {}
    for name in ("weak", "clear"):
        browser.write("#query", f"{name}.png")
        told[name] = browser.one(".card .facts").text, [badge.text for badge in browser.all(".card .badge")]
    assert "strength 1.2× noise" in told["weak"][0]
    assert "strength 3.4× noise" in told["clear"][0]
    assert [badges for _, badges in told.values()] == [["hardly any evidence"], []]


def test_tabs_for_classes_layers_and_methods(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.write("#query", "cat9")
    assert [tab.text for tab in browser.all(".card [role=tab]")] == ["Egyptian cat"]
    layers = browser.all("#layers [role=tab]")
    assert [tab.text for tab in layers] == ["all", "features.9", "features.23"]
    assert not browser.one("#methods").is_displayed()
    layers[1].click()
    assert [tab.text for tab in browser.all(".card [role=tab]")] == ["tiger cat", "Egyptian cat"]
    browser.all(".card [role=tab]")[1].click()
    first = browser.one(".card .map").get_attribute("src")
    browser.press(Keys.ARROW_LEFT)
    assert browser.driver.switch_to.active_element.text == "tiger cat"
    assert browser.one(".card .map").get_attribute("alt") == "Map of tiger cat in cat9.png"
    assert browser.one(".card .map").get_attribute("src") != first
    browser.write("#query", "")
    assert browser.names() == ["cat9.png"]  # the only one at this layer

    browser.one("#layers [role=tab]").click()
    browser.all(".card .open")[1].click()
    outcomes = browser.all("#viewer-outcomes [role=tab]")
    assert [tab.text for tab in outcomes] == ["features.9 · contrastive EB", "features.23 · contrastive EB"]
    outcomes[0].click()
    assert len(browser.all("#viewer-classes [role=tab]")) == 2
    assert "features.9" in browser.one("#viewer-facts").text
    assert browser.complaints() == []


def test_keys(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.press("/")
    assert browser.driver.switch_to.active_element.get_attribute("id") == "query"
    browser.press("1", "/")  # text, there
    assert browser.one("#query").get_attribute("value") == "1/"
    browser.press(Keys.ESCAPE)
    browser.write("#query", "cat")
    browser.press(Keys.ESCAPE)
    browser.write("#query", "")
    browser.press(Keys.TAB)
    browser.run("document.activeElement.blur()")

    def focused() -> str:
        return browser.run(
            "return document.activeElement.matches('.open') && document.activeElement.querySelector('bdi').textContent"
        )

    browser.press(Keys.ARROW_DOWN)
    assert focused() == "broken.png"
    browser.press(Keys.ARROW_RIGHT)
    assert focused() == "cat9.png"
    browser.press(Keys.END)
    assert focused() == "coffee.png"
    browser.press(Keys.ARROW_RIGHT)
    assert focused() == "coffee.png"
    browser.press(Keys.HOME, Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    name = browser.one("#viewer-name")
    assert name.text == "cats/cat10.png"
    assert browser.driver.switch_to.active_element == name  # which is read out
    assert browser.one("#position").text == "3 of 4"
    browser.press(Keys.ARROW_DOWN)
    assert browser.one("#viewer-classes [aria-selected=true] strong").text == "Egyptian cat"
    browser.press("1")
    assert browser.run("return document.documentElement.dataset.view") == "photo"
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert name.text == "coffee.png"
    browser.one("#previous").click()
    browser.press(Keys.ENTER, Keys.ENTER, Keys.ENTER)  # the button keeps the focus, and so the keys work
    assert name.text == "broken.png"
    assert "it is broken: bits" in browser.one("#viewer .note").text
    browser.press(Keys.ARROW_RIGHT, Keys.ESCAPE)
    browser.until(lambda: focused() == "cat9.png")
    assert not name.is_displayed()
    tabs = browser.all(".card")[2].find_elements("css selector", "[role=tab]")
    assert [tab.get_attribute("aria-selected") for tab in tabs] == ["false", "true"]  # as it was left


def test_the_summary_tells_what_was_run_and_what_failed(page: Path, browser: Browser) -> None:
    browser.open(page)
    browser.one("#summary summary").click()
    facts = browser.one("#facts").text
    for fact in (
        "4 images",
        "7 maps",
        "1 map",
        "vgg16 (untrained)",
        "features.23, features.9",
        "contrastive EB",
    ):
        assert fact in facts.replace("\n", " "), fact
    assert "4.0 s" in facts
    assert "1 image" in browser.one("#failures").text
    assert "it is broken: bits" in browser.one("#failures").text
    browser.one("#failures button").click()
    assert browser.names() == ["broken.png"]
    assert browser.one("#status").get_attribute("value") == "failed"


def test_an_extended_run_is_an_extended_page(page: Path, maps: Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.count() == 4
    add(maps, photo(Path("new.png")))
    append(
        maps,
        Record(
            "broken.png",
            "failed",
            error="another reason",
            place="broken.png",
            layer="features.23",
            method="contrastive EB",
        ),
    )
    write_gallery(maps)
    browser.open(page)
    assert browser.count() == 5
    assert "another reason" in browser.one(".card .note").text


def test_wrong_predictions_on_their_own_with_label_and_prediction(maps: Path, browser: Browser) -> None:
    for name, label, predicted in (("right.png", 282, 282), ("wrong.png", 285, 282)):
        apart = replace(CATS[0], name=None, against="Egyptian cat")  # which runs write last
        record = add(maps, photo(Path(name)), CATS if label == predicted else [*CATS[::-1], apart])
        append(maps, replace(record, label=label, predicted=predicted))
    add(maps, photo(Path("unlabeled.png")))
    browser.open(write_gallery(maps))
    assert browser.names() == ["right.png", "unlabeled.png", "wrong.png"]
    assert "accuracy 0.500 (1 of 2)" in browser.one("#lead").text
    marked = [
        [mark.text for mark in card.find_elements("css selector", ".mark")] for card in browser.all(".card")
    ]
    assert marked == [[], [], ["wrong"]]
    borders = [card.value_of_css_property("border-top-color") for card in browser.all(".card")]
    assert borders[0] == borders[1] != borders[2]
    browser.choose("#status", "wrong only")
    assert browser.names() == ["wrong.png"]
    tabs = [tab.text for tab in browser.all(".card [role=tab]")]
    assert tabs == ["both", "label: Egyptian cat", "predicted: tiger cat"]
    assert browser.one(".card [aria-selected=true]").text == "both"
    assert browser.one(".card .two-sided").text == "class 282 or Egyptian cat?"
    browser.one(".card [role=tab]:nth-child(2)").click()
    assert browser.all(".card .two-sided") == []
    assert browser.complaints() == []


def confusion(browser: Browser) -> list[list[str]]:
    """The texts of the table's rows."""
    return [
        [cell.text for cell in row.find_elements("css selector", "th, td")]
        for row in browser.all("#confusion tr")
    ]


def test_a_confusion_table_leads_to_the_maps_of_a_cell(maps: Path, browser: Browser) -> None:
    tiger, egyptian = CATS
    crane, other_crane = (replace(tiger, index=index, name="crane") for index in (134, 517))
    pairs = {
        "a.png": (tiger, egyptian), "b.png": (tiger, egyptian), "c.png": (tiger, tiger),
        "d.png": (egyptian, tiger), "e.png": (crane, other_crane), "f.png": (crane, crane),
    }  # fmt: skip
    for name, (label, predicted) in pairs.items():
        record = add(maps, photo(Path(name)), dict.fromkeys((label, predicted)))
        append(maps, replace(record, label=label.index, predicted=predicted.index))
    for name in ("right.png", "right2.png"):  # as --only wrong leaves them
        record = add(maps, photo(Path(name)), ())
        append(maps, replace(record, output=(), output_bytes=(), output_sha256=(), label=285, predicted=285))
    browser.open(write_gallery(maps))
    assert "accuracy 0.500 (4 of 8)" in browser.one("#lead").text
    assert browser.names() == list(pairs)
    browser.one("#confusion summary").click()
    assert confusion(browser) == [
        ["true ↓ predicted →", "crane", "tiger cat", "Egyptian cat", "crane"],
        ["crane", "1", "", "", "1"],
        ["tiger cat", "", "1", "2", ""],
        ["Egyptian cat", "", "1", "2", ""],
        ["crane", "", "", "", ""],
    ]
    cells = {button.get_attribute("data-pair"): button for button in browser.all("#confusion button")}
    assert "285 285" not in cells  # there are no maps to lead to
    browser.write("#query", "nothing")
    for pair, names in {"282 285": ["a.png", "b.png"], "134 134": ["f.png"], "134 517": ["e.png"]}.items():
        cells[pair].click()
        assert browser.names() == names
        pressed = browser.all("#confusion [aria-pressed=true]")
        assert [button.get_attribute("data-pair") for button in pressed] == [pair]
    assert browser.one("#count").text == "1 of 8 images: crane, predicted as crane"
    browser.one("#bar [type=reset]").click()
    assert browser.names() == list(pairs)
    assert browser.all("#confusion [aria-pressed=true]") == []
    assert browser.complaints() == []


def test_of_many_classes_the_table_has_those_with_the_most_wrong_predictions(
    maps: Path, browser: Browser
) -> None:
    def add_prediction(name: str, label: int, predicted: int) -> None:
        classes = [replace(CATS[0], index=index, name=f"kind {index}") for index in {label, predicted}]
        append(maps, replace(add(maps, photo(Path(name)), classes), label=label, predicted=predicted))

    for index in range(30):
        add_prediction(f"{index}.png", index, index)
    for index in range(5, 25):  # each is wrong twice: as a label, and as a prediction
        add_prediction(f"wrong{index}.png", index, 5 + (index - 4) % 20)
    browser.open(write_gallery(maps))
    browser.one("#confusion summary").click()
    assert (
        "These are the 20 classes with the most wrong predictions, of 30." in browser.one("#confusion p").text
    )
    table = confusion(browser)
    assert table[0][1:] == [row[0] for row in table[1:]] == [f"kind {index}" for index in range(5, 25)]
    assert [row.index("1", 1) for row in table[1:-1]] == [*range(1, 20)]  # the diagonal
    assert all(row.count("1") == 2 for row in table[1:])


def test_without_labels_there_is_no_wrong_prediction_to_choose(page: Path, browser: Browser) -> None:
    browser.open(page)
    assert not browser.one("#confusion").is_displayed()
    assert browser.one("#status option[value=wrong]").get_attribute("disabled")

"""The gallery of answers in a browser: which words are said, and where one was said without looking."""

from dataclasses import replace
from pathlib import Path

import pytest
from accessibility import unreached, violations
from browser import Browser
from galleries import COMMON, add, photo
from selenium.webdriver.common.keys import Keys

from ebcli.files.records import ClassRecord, Record
from ebcli.gallery.page import read_entries, write_gallery

QUESTION = "what is there?"


def word(name: str, answer: str, share: float, index: int = 5) -> ClassRecord:
    start = answer.index(name)
    evidence = "hardly any" if share < 0.14 else "clear"
    return ClassRecord(
        index,
        name,
        0.5,
        mass=share,
        share=share,
        blank=False,
        evidence=evidence,
        position=1,
        span=(start, start + len(name)),
    )


def answered(maps: Path, source: Path, answer: str, *words: ClassRecord, question: str = QUESTION) -> Record:
    return add(maps, source, words, common=replace(COMMON, question=question, answer=answer))


@pytest.fixture
def page(maps: Path) -> Path:
    """Three photos: dogs with a large and a small share, and a cat; the first one is asked twice."""
    first, second, third = (photo(Path(f"{name}.png"), (80, 60)) for name in "abc")
    answered(maps, first, "🐾 a dog", word("dog", "🐾 a dog", 0.6))
    answered(
        maps, second, "Dog and cat", word("Dog", "Dog and cat", 0.05, 6), word("cat", "Dog and cat", 0.4, 7)
    )
    answered(maps, third, "a cat", word("cat", "a cat", 0.5, 7))
    answered(maps, first, "cat", word("cat", "cat", 0.3, 7), question="and else?")
    return write_gallery(maps)


def test_each_question_about_a_photo_has_an_entry_and_the_latest_answer_counts(maps: Path) -> None:
    source = photo(Path("a.png"), (80, 60))
    answered(maps, source, "a dog", word("dog", "a dog", 0.6))
    answered(maps, source, "a cat", word("cat", "a cat", 0.5), question="and else?")
    answered(maps, source, "the dog", word("dog", "the dog", 0.2))
    answers = [
        (entry.outcomes[-1].record.question, entry.outcomes[-1].record.answer) for entry in read_entries(maps)
    ]
    assert answers == [(QUESTION, "the dog"), ("and else?", "a cat")]


def test_words_that_were_said_without_looking_come_first(page: Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.count() == 4
    rows = [row.text.split() for row in browser.all("#words tr")[1:]]
    assert rows == [["dog", "2", "0.050", "0.600", "1"], ["cat", "3", "0.300", "0.400", "0"]]
    browser.all("#words button")[0].click()
    assert browser.names() == ["b.png", "a.png"]
    browser.all(".card .open")[1].click()
    assert browser.one("#viewer-answer").text.splitlines() == [QUESTION, "🐾 a dog"]
    assert browser.one("#viewer-answer mark").text == "dog"
    assert "share" in browser.one("#viewer-classes").text
    browser.one("#close").click()
    browser.all("#words button")[1].click()
    assert browser.names() == ["a.png", "b.png", "c.png"]
    browser.write("#query", "dog and")
    assert browser.names() == ["b.png"]
    assert browser.complaints() == []


@pytest.mark.parametrize(("size", "scheme"), [((1280, 900), "light"), ((390, 844), "dark")])
def test_everybody_can_use_it(page: Path, browser: Browser, size: tuple[int, int], scheme: str) -> None:
    browser.open(page, size, scheme)
    assert browser.one("#words table").is_displayed()
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(browser) == []
    if size[0] > 1000:  # on small screens, cards are made when they are scrolled to
        assert unreached(browser) == []
    browser.all("#words button")[0].click()
    browser.press(Keys.ENTER)  # the first card has the focus
    assert browser.one("#viewer-answer mark").is_displayed()
    assert violations(browser) == []

"""What is printed of each result: the paths of its files, or JSON, on stdout; what is known of it on stderr."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ebcli.cli.console import display_path, note, one_line, quote_path, say, say_error, write_out
from ebcli.datatypes.explanation import VALUE
from ebcli.errors import closest
from ebcli.files.naming import HTML
from ebcli.models.keywords import CROP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebcli.cli.options import Options
    from ebcli.files.records import ClassRecord, Record
    from ebcli.run.plan import RunPlan
    from ebcli.run.plan_parts import MapOptions

_ByIndex = dict[int | None, str]  # of classes

_LOST_SHOWN = 3
_LOST_LEAST = 0.0005  # of a probability of 1
_MAX_RANKED = 5  # classes
_LITTLE = 0.4  # of an image; the center crop of a 4:3 photo has 0.57
_WHOLE_IMAGE = "--fit whole explains all of it, which changes scores and perhaps the prediction"


@dataclass
class RecordPrinter:
    """Prints records as the options of a command say.

    Attributes:
        plan: the run.
        options: the options.
        out: in place of stdout.
        is_only: whether there is one record.
        topics: those of hints that were given.
    """

    plan: RunPlan
    options: Options
    out: IO[str]
    is_only: bool
    topics: set[str] = field(default_factory=set)

    @property
    def verbose(self) -> Any:
        return self.options["verbose"]

    def print(self, record: Record) -> None:
        """Print what is known of an image, and its files."""
        name = display_path(record.input)
        if record.error is not None:
            say_error(record.error, label=name)
        if record.problem:
            say_error(record.problem, label=name)
        if record.status == "not an image":
            if self.verbose:
                say(f"{name}: not an image, skipped")
            return
        self._print_unsaid(record, name)
        self._print_prediction(record, name)
        self._print_maps(record, name)
        self._print_hints(record, name)
        if self.options["as_json"]:
            write_out(record.line(), self.out)
            return
        if self.is_only:
            self._print_answer(record)
        self._print_paths(record)

    def _print_prediction(self, record: Record, name: str) -> None:
        """Say why there is no map, and what is predicted wrongly."""
        if self.plan.maps.only is not None and record.is_without_maps:
            if self.verbose:
                say(f"{name}: {record.prediction_words}, skipped")
        elif record.is_without_maps:
            note(f"{name}: no map, as {_why_no_map(self.plan.maps)}")
        if record.label != record.predicted:
            note(f"{name}: {_misclassification(record)}")

    def _print_answer(self, record: Record) -> None:
        """Print the only answer of a run, if there is one, and the share of each word."""
        if not record.is_answered:
            return
        write_out(one_line((record.answer or "").strip()), self.out)
        for word in record.classes:
            write_out(one_line(f"{word.name}: {word.share:.2f} from the picture"), self.out)

    def _print_paths(self, record: Record) -> None:
        paths = [record.input] if record.status == "planned" else [*record.output]
        if record.is_answered and self.is_only and paths and not self.plan.output.is_file:
            paths.append(str(Path(paths[0]).with_suffix(f".{HTML}")))
        titles: list[str] = []
        end = b"\n"
        if self.options["null"]:  # programs read paths alone
            end = b"\0"
        elif self.out.isatty() or self.plan.maps.at:
            titles = self._titles(record)
        for path, title in zip(paths, chain(titles, repeat("")), strict=False):
            write_out(quote_path(path, self.out) + one_line(title).encode() + end, self.out, nl=False)

    def _titles(self, record: Record) -> list[str]:
        """What is printed behind the path of each picture."""
        if self.plan.maps.at is not None and record.status == "done":
            return [f"  {_ranking(record.classes)}"]
        if record.is_answered and not self.is_only:
            return [f"  {(record.answer or '').strip()}"]
        if self.plan.output.panel:
            return []
        return [f"  {_against(class_, class_.label)}, {_number(class_)}" for class_ in record.classes]

    def _print_maps(self, record: Record, name: str) -> None:
        """Say what is known of each map; of usual ones only if verbose."""
        has_layers = len({class_.layer for class_ in record.classes}) > 1
        has_methods = len({class_.method for class_ in record.classes}) > 1
        for class_ in record.classes:
            title = _map_title(class_, has_layers)
            if has_methods:
                title += f" by {class_.method}"
            if self.verbose:
                facts = [class_.score_words]
                if title != VALUE:
                    facts.insert(0, title)
                if class_.mass is not None:
                    facts.append(f"mass {class_.mass:.3f}")
                facts += [*class_.evidence_words, *_losses(class_)]
                say(one_line(f"{name}: {', '.join(facts)}"))
            if class_.sufficiency is not None and (self.verbose or self.is_only):
                note(f"{name}: {class_.sufficiency['words']}")
            if class_.inputs and (self.verbose or self.is_only):
                note(one_line(f"{name}: {title}: {'; '.join(class_.input_words)}"))
            if class_.blank:
                note(f"{name}: the map of {title} is blank")

    def _print_unsaid(self, record: Record, name: str) -> None:
        """Say which words that are asked for an answer lacks; of many answers only if verbose."""
        words = self.plan.words
        is_wanted = self.is_only or self.verbose
        if words is None or not record.is_answered or not is_wanted:
            return
        said = [_words_alone(class_.label) for class_ in record.classes]
        for text in (*words.words, *words.phrases):
            words_alone = _words_alone(text)
            if not any(words_alone in explained for explained in said):
                hint = closest(text, re.findall(r"\w+", record.answer or ""))
                note(f"{name}: not said: {text!r}" + (f"; {hint}" if hint else ""))

    def _print_hints(self, record: Record, name: str) -> None:
        """Say what of an image is not explained, and what explains it; of the first such image only, unless verbose."""
        hints = {**record.notes}
        if record.pages > 1:
            hints["pages"] = f"only the first of its {record.pages} pages or frames is explained"
        if record.tiles:
            hints |= self._hints_of_tiles(record.tiles)
        if record.seen < _LITTLE and record.clips is None:
            hints["crop"] = f"the center crop has {record.seen:.0%} of the image; {_WHOLE_IMAGE}"
        elif record.fit == CROP and any(class_.at_border for class_ in record.classes):
            hints["border"] = f"a map peaks at the border of the center crop; {_WHOLE_IMAGE}"
        for topic, hint in hints.items():
            if self.verbose:
                note(f"{name}: {hint}")
            elif topic not in self.topics:
                note(f"{name}: {hint} (--verbose says so of every image)")
        self.topics.update(hints)

    def _hints_of_tiles(self, count: int) -> dict[str, str]:
        """What a user may not expect of an image explained in so many tiles."""
        hints = {}
        if self.plan.model.preprocessing.tiles is None:
            hints["tiles"] = f"much longer than wide, so it is explained in {count} tiles"
        if self.plan.output.raw:
            hints["raw"] = (
                "its raw file has the joined maps, but no relevance, which each tile has on its own"
            )
        if self.plan.maps.sufficiency:
            advice = "--fit pad explains it in one piece"
            hints["test"] = f"it is explained in tiles, so sufficiency is not tested; {advice}"
        return hints


def _words_alone(text: str) -> str:
    """The words of a text between single spaces: a phrase may be said with a hyphen, or as part of another one."""
    words = re.findall(r"\w+", text.lower())
    return f" {' '.join(words)} "


def _why_no_map(maps: MapOptions) -> str:
    """Why an image has no map, and what finds more."""
    if maps.above is not None:
        return f"nothing scores above {maps.above:g}"
    finding = "nothing is"
    if maps.targets:
        finding = f"none of the targets {', '.join(maps.targets)} is"
    if maps.where is not None:
        return f"{finding} detected"
    return f"{finding} found; a lower --score or --above finds more"


def _number(class_: ClassRecord) -> str:
    """The score or the value, without its name."""
    return class_.score_words.partition(" ")[2]


def _against(class_: ClassRecord, title: str) -> str:
    """The title of a map, with what its class is compared with."""
    return f"{title} against {class_.against}" if class_.against else title


def _map_title(class_: ClassRecord, has_layers: bool) -> str:
    """What a map is about, in words."""
    title = f"class {class_.index}"
    if class_.value is not None:
        title = class_.label
    elif class_.name:
        title += f" ({class_.name})"
    if has_layers:
        title += f" at {class_.layer}"
    return _against(class_, title)


def _ranking(classes: Sequence[ClassRecord]) -> str:
    """The classes that have most of the evidence at the pixel of ``--at``, with their shares."""
    ranked = sorted(filter(attrgetter("share_at"), classes), key=attrgetter("share_at"), reverse=True)
    shares = [f"{class_.label} {class_.share_at:.2f}" for class_ in ranked[:_MAX_RANKED]]
    return ", ".join(shares) or "no class has clear evidence there"


def _losses(class_: ClassRecord) -> list[str]:
    """The operations at which the most probability was lost."""
    losses = {site: loss for site, loss in (class_.losses or {}).items() if loss >= _LOST_LEAST}
    sites = sorted(losses, key=losses.__getitem__, reverse=True)
    parts = [f"{losses[site]:.3f} in {site.partition(' in ')[2] or site}" for site in sites]
    if not parts:
        return []
    if len(parts) > _LOST_SHOWN:
        parts[_LOST_SHOWN:] = ["among others"]
    return [f"lost {', '.join(parts)}"]


def _misclassification(record: Record) -> str:
    """The true class and the predicted one, with its score if its map was asked for."""
    labels: _ByIndex = {class_.index: class_.label for class_ in record.classes}
    scores: _ByIndex = {class_.index: f" ({_number(class_)})" for class_ in record.classes}
    label, prediction = (labels.get(index, f"class {index}") for index in (record.label, record.predicted))
    return f"labeled {label}, predicted {prediction}{scores.get(record.predicted, '')}"

"""The table of rules: one entry for each operation of ATen, in the file of its family.

Nothing else in the engine compares operations by name. An entry says how an operation passes probability and weights,
what it tells of its result, what it is explained as, and where it puts the elements of its operands.
"""

from ebcli.eb.rules import activations, arithmetic, decompositions, layers, moves
from ebcli.eb.rules.moves import MISSING
from ebcli.eb.rules.rule import Entry, Table


def _by_name() -> Table:
    table: Table = {}
    for family in (moves, activations, arithmetic, layers, decompositions):
        for names, entry in family.ENTRIES.items():
            for name in names.split():
                if name in table:
                    raise AssertionError(f"{name} has two entries in the table of rules")
                table[name] = entry
    return table


RULES = _by_name()


def entry_for(name: str) -> Entry:
    """The entry of an operation. One that has none passes no probability without a word: it is reported."""
    return RULES.get(name, MISSING)

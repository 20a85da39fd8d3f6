"""What the engine knows of an operation is in the table of rules alone, and is complete there."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch
import torchvision  # noqa: F401  whose operations are in torch.ops
from torch import nn
from torch.nn import functional as F

import ebcli
from ebcli.eb import rules
from ebcli.eb.rules import RULES, activations, moves
from ebcli.eb.rules.rule import Entry, Rule

FILES = sorted((Path(ebcli.__file__).parent / "eb").rglob("*.py"))

OF_THE_TAPE = {"same", "write"}  # operations that are none of ATen
NEWER = {"_fused_rms_norm": "from PyTorch 2.9 on"}


class NameFinder(ast.NodeVisitor):
    """Finds where a source compares operations by name.

    Attributes:
        found: line numbers, and what is there.
    """

    def __init__(self, source):
        self.found = []
        self.visit(ast.parse(source))

    def note(self, node):
        self.found.append(f"{node.lineno}: {ast.unparse(node)}")

    def visit_Compare(self, node):
        sides = [node.left, *node.comparators]
        for side in filter(is_name, sides):
            others = [other for other in sides if other is not side]
            if any(may_hold_names(other, beside=side) for other in others):
                self.note(node)
                break
        if any(map(is_operation, sides)):
            self.note(node)
        self.generic_visit(node)

    def visit_Call(self, node):
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_spelling = [ast.literal_eval(a) for a in arguments if isinstance(a, ast.Constant)] == [
            "_"
        ]  # in place or not
        if method in ("startswith", "endswith") and is_name(node.func.value) and not is_spelling:
            self.note(node)
        if method in ("match", "fullmatch", "search") and any(map(is_name, arguments)):
            self.note(node)
        self.generic_visit(node)

    def visit_Match(self, node):
        if is_name(node.subject):
            self.note(node.subject)
        self.generic_visit(node)

    def visit_Module(self, node):
        for statement in node.body:
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            names = {ast.unparse(target) for target in targets if target}
            value = getattr(statement, "value", None)
            if names and value and names.isdisjoint({"ENTRIES", "__all__"}) and holds_names(value):
                self.note(statement)
        self.generic_visit(node)


def is_name(node):
    """Whether an expression is the name of an operation, or is made of it."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value  # such as name.removesuffix("_")
    if isinstance(node, ast.Attribute):
        return node.attr == "name"
    return (
        isinstance(node, ast.Name) and re.fullmatch(r"(op_|operator_|operation_)?name", node.id) is not None
    )


def may_hold_names(node, beside):
    """Whether an expression is a text, or a collection that is not the table itself, beside a name."""
    if isinstance(node, ast.Name) and node.id.isupper():
        return node.id not in ("RULES", "FUNCTIONS")
    if isinstance(node, (ast.Name, ast.Attribute)):
        return isinstance(beside, ast.Attribute) and not is_name(node)
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))


def is_operation(node):
    """Whether an expression is an operation of ATen itself, such as aten.add.Tensor."""
    return re.match(r"(torch\.ops\.)?aten\.\w", ast.unparse(node)) is not None


def holds_names(node):
    """Whether a collection has names of operations."""
    texts = [
        part.value for part in members(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    words = [text.split() for text in texts]
    return any(all(word in RULES or is_function_of_aten(word) for word in of_text) for of_text in words)


def members(node):
    """The members of a collection that is written out, and the keys of a dictionary."""
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key]
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return node.elts
    if isinstance(node, ast.BinOp):
        return [*members(node.left), *members(node.right)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        return [node.func.value]
    if isinstance(node, ast.Call):  # such as frozenset(...)
        return [member for argument in node.args for member in members(argument)]
    return []


def is_function_of_aten(word):
    return hasattr(torch.ops.aten, word) and not inspect.isdatadescriptor(getattr(torch.Tensor, word, None))


BY_NAME = {
    "equal": 'def f(op):\n    return op.name == "relu"',
    "one of a tuple": 'x = name in ("relu", "gelu")',
    "one of a collection": "x = op.name in POOLS",
    "one of an attribute": "x = op.name in self.pools",
    "start": 'x = op.name.startswith("upsample")',
    "pattern": 'x = re.match("max_pool", op.name)',
    "match": 'def f(op):\n    match op.name:\n        case "relu":\n            return 1',
    "operation": "x = op.function is aten.relu.default",
    "collection": 'POOLS = {"max_pool2d_with_indices", "avg_pool2d"}',
    "table beside the table": 'GAINS: dict[str, float] = {"relu": 1.0}',
    "operation without a rule": 'HIDDEN = frozenset(["cumprod"])',
}
OTHERWISE = {
    "the table": 'ENTRIES = {"relu gelu": RELU}',
    "a look into the table": "x = name in RULES",
    "in place": 'x = name.endswith("_")',
    "name of a layer": "x = name in self._values",
    "table of private names": 'NAMES = {"torch.Tensor._base": "the tensor that a view shows; none"}',
}


@pytest.mark.parametrize("case", BY_NAME)
def test_comparisons_by_name_are_found(case):
    assert NameFinder(BY_NAME[case]).found


@pytest.mark.parametrize("case", OTHERWISE)
def test_nothing_else_is_found(case):
    assert not NameFinder(OTHERWISE[case]).found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_compares_operations_by_name(path):
    assert NameFinder(path.read_text(encoding="utf-8")).found == []


def subclasses(kind):
    return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]


def test_every_rule_answers_everything():
    answers = {"describe", "shares", "slopes", "places"}
    assert answers <= Rule.__abstractmethods__
    incomplete = [
        kind for kind in subclasses(Rule)[1:] if inspect.isabstract(kind) and kind.__module__ != __name__
    ]
    assert incomplete == []


def test_every_name_has_its_entry():
    assert [name for name in RULES if not isinstance(rules.entry_for(name), Entry)] == []
    assert [name for name in RULES if rules.entry_for(name) is not RULES[name]] == []
    assert rules.entry_for("cumprod") is moves.MISSING


def test_a_name_has_one_entry(monkeypatch):
    monkeypatch.setitem(activations.ENTRIES, "mean", activations.RELU)
    with pytest.raises(AssertionError, match="mean has two entries"):
        rules._by_name()


def test_every_name_is_that_of_an_operation():
    def is_there(name):
        namespace, _, operation = name.rpartition(".")
        return hasattr(getattr(torch.ops, namespace or "aten"), operation)

    missing = {name for name in RULES if not is_there(name)}
    assert missing - NEWER.keys() == OF_THE_TAPE


class Unknown(nn.Module):
    """An operation without a rule, behind a layer."""

    def __init__(self, function):
        super().__init__()
        self.stem, self.head, self.function = nn.Linear(4, 4), nn.Linear(4, 5), function

    def forward(self, x):
        return self.head(F.gelu(self.function(self.stem(x))))


UNKNOWN = {
    "cumprod": lambda y: y.cumprod(1),
    "prod": lambda y: y.prod(1, keepdim=True).expand(-1, 4),
    "_cdist_forward": lambda y: torch.cdist(y, y + 1).expand(-1, 4),
}


@pytest.mark.parametrize("joint", [None, True, False])
@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operation_that_is_not_in_the_table_is_refused_by_name(name, joint):
    assert name not in RULES
    torch.manual_seed(0)
    net, x = Unknown(UNKNOWN[name]), torch.randn(1, 4)
    for contrastive in (False, True):
        with pytest.raises(ebcli.UnsupportedOpError, match=f"no excitation rule for {name} in Unknown"):
            ebcli.excitation_backprop(net, x, 1, contrastive=contrastive, joint=joint)
    for layer in (None, "stem"):
        with pytest.warns(UserWarning, match=f"ordinary gradients .* for {name}"):
            ebcli.excitation_backprop(net, x, 1, layer, joint=joint, unsupported="gradient")

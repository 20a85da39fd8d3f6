"""Private names of PyTorch are in one file, which says why, and which of them a version of PyTorch lacks."""

import ast
import re
from pathlib import Path

import pytest

import ebcli
from ebcli.eb import torch_private

PACKAGE = Path(ebcli.__file__).parent
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
HOME = "eb/torch_private.py"

# private attributes of PyTorch's objects, whatever these are called
ATTRIBUTES = {
    "_base", "_is_view", "_cdata", "_schema", "_overloadname", "_execution_engine", "_version", "_forward_cls",
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_python_dispatch", "_pytree",
}  # fmt: skip
# no less private, though their names do not say so
BARE = {"StorageWeakRef", "TorchDispatchMode", "OpOverload"}


class PrivateNames(ast.NodeVisitor):
    """Finds where a source uses a private name of PyTorch.

    Attributes:
        found: line numbers, and the names.
    """

    def __init__(self, source):
        self.found = []
        self.visit(ast.parse(source))

    def check(self, node, name):
        parts = name.split(".")
        if parts[0] in ("torch", "nn", "aten") and any(map(is_private, parts)):
            self.found.append(f"{node.lineno}: {name}")

    def visit_Import(self, node):
        for alias in node.names:
            self.check(node, alias.name)

    def visit_ImportFrom(self, node):
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            self.check(node, name)
            if alias.name in BARE and (node.module or "").startswith("torch"):
                self.found.append(f"{node.lineno}: {name}")

    def visit_Attribute(self, node):
        name = ast.unparse(node)
        if re.fullmatch(r"[\w.]+", name) and name.startswith(("torch.", "nn.", "aten.")):
            self.check(node, name)
            return
        if node.attr in ATTRIBUTES and name != f"self.{node.attr}":
            self.found.append(f"{node.lineno}: {name}")
        self.generic_visit(node)

    def visit_Call(self, node):
        reads = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr")
        name = node.args[1] if reads and len(node.args) > 1 else None
        if isinstance(name, ast.Constant) and name.value in ATTRIBUTES:
            self.found.append(f"{node.lineno}: {ast.unparse(node)}")
        self.generic_visit(node)


def is_private(part):
    return part.startswith("_") and not part.startswith("__")


PRIVATE = {
    "module": "import torch._dynamo",
    "name": "from torch.nn.modules.conv import _ConvNd",
    "name without underscore": "from torch.multiprocessing.reductions import StorageWeakRef",
    "attribute": "x = torch._C._len_torch_function_stack()",
    "operation": "x = aten._softmax.default",
    "of a tensor": "x = tensor._base",
    "of memory": "x = tensor.untyped_storage()._cdata",
    "asked for by name": 'x = hasattr(node, "_forward_cls")',
}
PUBLIC = {
    "module": "import torch.nn.functional as F",
    "attribute": "x = torch.overrides.TorchFunctionMode",
    "own attribute": "x = self._base",
    "own name": "from ebcli.eb.torch_private import StorageWeakRef, _set_grad_enabled",
    "text": 'x = "torch._C"',
}


@pytest.mark.parametrize("case", PRIVATE)
def test_private_names_are_found(case):
    assert PrivateNames(PRIVATE[case]).found


@pytest.mark.parametrize("case", PUBLIC)
def test_public_names_are_not_found(case):
    assert not PrivateNames(PUBLIC[case]).found


def test_its_home_has_them():
    assert PrivateNames(FILES[HOME].read_text(encoding="utf-8")).found


@pytest.mark.parametrize("name", sorted(FILES.keys() - {HOME}))
def test_no_other_file_uses_private_names(name):
    assert PrivateNames(FILES[name].read_text(encoding="utf-8")).found == []


def test_this_pytorch_has_all():
    assert torch_private.missing() == []


@pytest.mark.parametrize(
    "name", ["torch._C._no_such_name", "torch._no_such.module", "torch.Tensor._no_such_view"]
)
def test_a_name_that_is_missing_is_reported(name, monkeypatch):
    monkeypatch.setitem(torch_private.NAMES, name, "a test; none")
    assert torch_private.missing() == [name]


def test_each_name_has_its_reason():
    """Why it is used, and what public name would replace it."""
    for name, reason in torch_private.NAMES.items():
        why, _, instead = reason.partition("; ")
        assert why, name
        assert instead, name


def test_all_names_in_the_file_have_a_reason():
    """Each private part of a name that the file uses is a part of a name with a reason."""
    reasons = {part for name in torch_private.NAMES for part in name.split(".")}
    for found in PrivateNames(FILES[HOME].read_text(encoding="utf-8")).found:
        parts = found.partition(": ")[2].split(".")
        private = {part for part in parts if is_private(part)} or {parts[-1]}
        assert private <= reasons, found

"""The private names of PyTorch that the engine uses: nothing else in ebcli refers to one.

`NAMES` says why each is used and which public name would replace it. `missing` lists those that a version of PyTorch
lacks; the tests and `eb-saliency doctor` ask it.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _set_grad_enabled
from torch._decomp import decomposition_table
from torch._decomp import decompositions as loops_over_time
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

__all__ = [
    "DisableTorchFunction",
    "OpOverload",
    "StorageWeakRef",
    "TorchDispatchMode",
    "_set_grad_enabled",
    "attention_weights",
    "count_modes",
    "decomposition_of",
    "is_composite",
    "is_parameter",
    "is_view",
    "leave_modes",
    "loops_over_time",
    "missing",
    "run_backward",
    "schema_of",
    "storage_of",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]

# name -> why it is used; the public name instead
NAMES = {
    "torch._C._set_grad_enabled": "takes a tenth of the time, and function modes see it; torch.set_grad_enabled()",
    "torch._C.DisableTorchFunction": "calls Function.apply() inside a function mode; none",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "tells which operations are made of others; none",
    "torch._decomp.decomposition_table": "PyTorch's own decompositions; torch.export.default_decompositions()",
    "torch._decomp.decompositions": "recurrent layers as loops over time; none",
    "torch._C._get_dispatch_stack_at": "the dispatch mode that an interrupted call has left; none",
    "torch._C._len_torch_dispatch_stack": "whether an interrupted call has left a dispatch mode; none",
    "torch._C._len_torch_function_stack": "whether an interrupted call has left a function mode; none",
    "torch._C._pop_torch_function_stack": "leaves such a mode; TorchFunctionMode.__exit__()",
    "torch._ops.OpOverload": "the type of operations, which says whether they are views; none",
    "torch.ops.aten.add.Tensor._schema": "the name and the arguments of operations; none",
    "torch.Tensor._base": "the tensor that a view shows; none",
    "torch.Tensor._is_view": "autograd gives views no node of their own; none",
    "torch.UntypedStorage._cdata": "identifies memory, also where there is none to point to; data_ptr()",
    "torch.autograd.Variable._execution_engine": "runs inside vmap, and does not import SymPy; torch.autograd.grad()",
    "torch.multiprocessing.reductions.StorageWeakRef": "keeps an address from being used again; none",
    "torch.ops.aten._scaled_dot_product_attention_math": "the weights of attention; softmax(q @ k.mT), with its masks",
    "torch.utils._python_dispatch.TorchDispatchMode": "sees operations below autograd; documented, with this path",
    "torch.utils._pytree": "walks containers as PyTorch does; torch.utils.pytree, from 2.10 on",
}

attention_weights = torch.ops.aten._scaled_dot_product_attention_math
_engine: Any = torch.autograd.Variable._execution_engine


def missing() -> list[str]:
    """The names that the installed PyTorch lacks."""

    def is_there(name: str) -> bool:
        try:
            attrgetter(name.removeprefix("torch."))(torch)
        except AttributeError:
            return False
        return True

    return [name for name in NAMES if not is_there(name)]


def count_modes() -> tuple[int, int]:
    """The number of function modes and of dispatch modes that are active in this thread."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def leave_modes(functions: int, dispatches: int) -> None:
    """Leave the function modes and dispatch modes above some numbers of them."""
    while torch._C._len_torch_function_stack() > functions:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > dispatches:
        mode: Any = torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)
        mode.__exit__(None, None, None)


def storage_of(tensor: Tensor) -> int:
    """What identifies a tensor's memory while it lives."""
    return tensor.untyped_storage()._cdata


def is_parameter(tensor: Tensor) -> bool:
    """Whether it is a parameter, or a view of one."""
    return isinstance(tensor, Parameter) or isinstance(tensor._base, Parameter)


def is_composite(operator: OpOverload) -> bool:
    """Whether an operation is made of others."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")


def schema_of(operator: OpOverload) -> Any:
    """The arguments of an operation, and whether it changes them."""
    return operator._schema


def is_view(tensor: Tensor) -> bool:
    return tensor._is_view()


def decomposition_of(name: str) -> Callable[..., Any]:
    """PyTorch's decomposition of an operation of ATen."""
    return decomposition_table[getattr(torch.ops.aten, name).default]


def run_backward(pairs: Iterable[tuple[Tensor, Tensor]], leaves: Iterable[Tensor]) -> Sequence[Any]:
    """What arrives at leaves if vectors arrive at results, given in pairs of both; None where nothing does."""
    results, vectors = zip(*pairs, strict=True)
    flags = {"allow_unreachable": True, "accumulate_grad": False}
    return _engine.run_backward(
        results, vectors, keep_graph=False, create_graph=False, inputs=tuple(leaves), **flags
    )

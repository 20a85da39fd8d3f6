"""Which of the two rules a network will need, so that most calls run it only once.

The graph of a forward pass tells, whichever rule the pass was made for. If the prediction was wrong, the pass is
repeated.
"""

from __future__ import annotations

import weakref

from torch import nn

_SIGNED = (nn.GELU, nn.SiLU, nn.Hardswish, nn.Mish)

_last: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def probably_joint(net: nn.Module) -> bool:
    """The rule of the network's last call; before the first one, joint if it has modules that make it likely."""
    known = _last.get(net)
    return any(isinstance(module, _SIGNED) for module in net.modules()) if known is None else known


def remember(net: nn.Module, is_joint: bool) -> None:
    """Note the rule that a call needed."""
    _last[net] = is_joint

"""Its excitation rule: one input, one output."""

import ebcli
from acme_nets.operation import doubled


@ebcli.rule(doubled)
def doubled_rule(call, x):
    return ebcli.pass_through(call, x, keeps_zero=True)

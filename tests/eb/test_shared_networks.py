"""What a pass leaves behind: nothing in the network, whoever else uses it at the same time."""

import threading

import pytest
import torch
from torch import nn
from twins import images, seeded

import ebcli


class Meeting(nn.Module):
    """Hands its input on. The first thread to come waits for a second one, which then waits until the first is done.

    Whoever waits goes on alone after a while, for the second one may have to wait outside.
    """

    def __init__(self):
        super().__init__()
        self.came, self.is_done, self.comers = threading.Event(), threading.Event(), []

    def forward(self, x):
        self.comers.append(threading.get_ident())
        if len(self.comers) == 1:
            self.came.wait(1)
        else:
            self.came.set()
            self.is_done.wait(5)
        return x


def test_two_threads_on_a_network_in_training():
    net = seeded(lambda: nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, 3)))
    expected = ebcli.excitation_backprop(net, images((4, 6)), 1).relevance
    meeting, found = Meeting(), []
    met = nn.Sequential(meeting, net).train()

    def run():
        found.append(ebcli.excitation_backprop(met, images((4, 6)), 1).relevance)
        meeting.is_done.set()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(module.training for module in met.modules())
    for relevance in found:
        torch.testing.assert_close(relevance, expected)
    assert len(found) == 2


WRITES = {
    "copy_": lambda net, y: net.buffer.copy_(y),
    "item": lambda net, y: net.buffer.__setitem__(slice(None), y),
    "assigned": lambda net, y: setattr(net, "buffer", y),
}


@pytest.mark.parametrize("layer", [None, "first"])
@pytest.mark.parametrize("name", WRITES)
def test_a_buffer_that_the_network_writes_to_is_a_plain_tensor_afterwards(name, layer):
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.fc = nn.Linear(6, 4), nn.Linear(4, 3)
            self.register_buffer("buffer", torch.zeros(2, 4))

        def forward(self, x):
            y = self.first(x).tanh()
            WRITES[name](self, y)
            return self.fc(y)

    net, x = seeded(Remembers), images((2, 6))
    with torch.no_grad():
        net(x)
    plain = net.buffer.clone()
    for contrastive in (False, True):
        net.buffer = torch.zeros(2, 4).double()
        ebcli.excitation_backprop(net, x, 1, layer, contrastive)
        assert not net.buffer.requires_grad
        assert net.buffer.grad_fn is None
        torch.testing.assert_close(net.buffer, plain, rtol=0, atol=0)

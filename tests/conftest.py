"""What all tests share."""

import torch

torch.set_num_threads(1)  # the tests run in several processes at once

"""Memory and time of the words of an answer, on a random network of the width of Qwen2.5-VL-3B with two layers.

    python -m benchmarks.word_memory                     # on the CPU
    python -m benchmarks.word_memory --device cuda --dtype bfloat16

It prints the bytes per token and layer that the record of one layer holds, beside the formula, and what this makes
of the whole network: recorded at once, and one layer after another as `ask` does. The unit of time is one forward
pass with the whole answer.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import ebcli
from ebcli.eb.checkpoints import checkpointed
from ebcli.eb.tape import Tape

HIDDEN, INTERMEDIATE, HEADS, KEYS, LAYERS = 2048, 11008, 16, 2, 36
KEY_WIDTH = HIDDEN // HEADS * KEYS
# What rules read, in one layer: the stream and its norms (seven tensors as wide as it), queries and what is turned for
# them, keys, values, and three tensors as wide as the gated unit
NUMBERS = 14 * HIDDEN + 6 * KEY_WIDTH + 3 * INTERMEDIATE


class Answer(nn.Module):
    """The logits of the last tokens as a function of what a decoder reads, (1, S, D)."""

    def __init__(self, net: nn.Module, words: int) -> None:
        super().__init__()
        self.net = net
        self.read = nn.Identity()
        self.words = words

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        with checkpointed(self.net):
            options = {"use_cache": False, "logits_to_keep": self.words}
            logits = self.net(inputs_embeds=self.read(states), **options).logits
        return logits[0, range(self.words), range(self.words)][None]


@contextmanager
def held_bytes() -> Iterator[list[int]]:
    """The bytes of the numbers that each tape holds when it is freed, but for parameters."""
    held: list[int] = []
    clear = Tape.clear

    def measure(tape: Tape) -> None:
        ops = [op for op in vars(tape).get("ops", ()) if "outs" in vars(op)]
        numbers = [out.numbers for op in ops for out in op.outs if out.numbers is not None]
        held.append(
            sum({tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in numbers}.values())
        )
        clear(tape)

    Tape.clear = measure  # type: ignore[method-assign]
    try:
        yield held
    finally:
        Tape.clear = clear  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--words", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
    )
    torch.manual_seed(0)
    net = Qwen2ForCausalLM(config).to(options.device, dtype).eval()
    states = torch.randn(1, options.tokens, HIDDEN, device=options.device, dtype=dtype)

    def seconds(work: object) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            work()  # type: ignore[operator]
            if options.device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    for words in options.words:
        answer = Answer(net, words)
        priors = torch.eye(words, device=options.device, dtype=dtype)
        priors = torch.cat([priors, -priors])[None]

        def explain(answer: nn.Module = answer, priors: torch.Tensor = priors) -> None:
            ebcli.excitation_backprop(answer, states, priors, "read", joint=True)

        def forward(answer: nn.Module = answer) -> None:
            with torch.inference_mode():
                answer(states)

        with held_bytes() as held:
            explain()
        size = dtype.itemsize
        measured = max(held) / options.tokens
        ratio = seconds(explain) / seconds(forward)
        gigabytes = [layers * measured * 2000 / 1e9 for layers in (LAYERS, 1)]
        print(
            f"{words} words, {options.dtype} on {options.device}: {measured / 1e3:.0f} kB per token and layer, "
            f"by the formula {NUMBERS * size / 1e3:.0f}; {LAYERS} layers and 2000 tokens: {gigabytes[0]:.1f} GB at "
            f"once, {gigabytes[1]:.2f} GB one after another; {ratio / words:.1f} forward passes per word"
        )


if __name__ == "__main__":
    main()

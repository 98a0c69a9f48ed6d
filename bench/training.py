"""Real training state for the benchmarks: a small GPT trained on the sources of Python's library, in mixed precision as is usual.

bfloat16 weights, float32 master weights, and AdamW's two moments over those: 14 bytes a parameter. Forward and backward compute in float32
from the bfloat16 weights, as a CPU without bfloat16 arithmetic takes tens of times as long with it. The first steps take a minute or two;
what they end with is kept, so that a later run goes on from there.
"""

import re
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from gpt import Gpt, GptConfig

WIDTH, VOCABULARY, CONTEXT, BATCH = 512, 8192, 128, 2
BYTES_A_PARAMETER = 2 + 4 + 4 + 4
LEARNING_RATE, STEPS_TO_FULL_RATE = 6e-4, 20


def tokens() -> torch.Tensor:
    """The sources as numbers of words; 0 for those that are rare."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    words = re.findall(r"\w+|[ \t]+|\n+|[^\w\s]", "".join(file.read_text(errors="ignore") for file in files))
    vocabulary = {word: number for number, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), 1)}
    return torch.tensor([vocabulary.get(word, 0) for word in words])


class Training:
    """A model and its optimizer after `steps` steps, of about `state_bytes`. The state is kept in `folder` between runs."""

    def __init__(self, state_bytes: int, steps: int, folder: Path) -> None:
        embeddings = 2 * VOCABULARY * WIDTH + CONTEXT * WIDTH
        layers = max(1, round((state_bytes / BYTES_A_PARAMETER - embeddings) / (12 * WIDTH**2)))
        self.config = GptConfig(vocabulary=VOCABULARY, context=CONTEXT, width=WIDTH, heads=8, layers=layers)
        torch.manual_seed(0)
        self.words = tokens()
        self.model = Gpt(self.config)
        self.master = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        self.model.bfloat16()
        self.optim = torch.optim.AdamW(list(self.master.items()), betas=(0.9, 0.95), weight_decay=0.1)
        self.steps_done, self.loss = 0, float("nan")
        kept = folder / f"state-{layers}-{steps}.safetensors"
        if kept.exists():
            self._take(load_file(kept), steps)
        else:
            while self.steps_done < steps:
                self.step()
            folder.mkdir(parents=True, exist_ok=True)
            save_file(self.tensors(), kept)

    def step(self) -> None:
        starts = torch.randint(len(self.words) - CONTEXT - 1, (BATCH,))
        batch = torch.stack([self.words[start : start + CONTEXT + 1] for start in starts])
        weights = {name: parameter.float() for name, parameter in self.model.named_parameters()}
        logits = torch.func.functional_call(self.model, weights, (batch[:, :-1],))
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        for name, parameter in self.model.named_parameters():
            self.master[name].grad = parameter.grad.float()
        torch.nn.utils.clip_grad_norm_(self.master.values(), 1.0)
        self.optim.param_groups[0]["lr"] = LEARNING_RATE * min(1, (self.steps_done + 1) / STEPS_TO_FULL_RATE)
        self.optim.step()
        self.optim.zero_grad()
        self.model.zero_grad()
        self._round()
        self.steps_done += 1
        self.loss = loss.item()

    def state(self) -> dict[str, Any]:
        """For those who take modules and optimizers."""
        return {"model": self.model, "master": self.master, "optim": self.optim}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "master": self.master, "optim": self.optim.state_dict()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The same as one flat mapping, for those who take no other."""
        slots = self.optim.state_dict()["state"]
        optim = {f"optim.{number}.{slot}": value for number, found in slots.items() for slot, value in found.items()}
        master = {f"master.{name}": value for name, value in self.master.items()}
        return {f"model.{name}": value for name, value in self.model.state_dict().items()} | master | optim

    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def _round(self) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.master[name])

    def _take(self, kept: dict[str, torch.Tensor], steps: int) -> None:
        for name, value in self.master.items():
            value.copy_(kept[f"master.{name}"])
        names = ("step", "exp_avg", "exp_avg_sq")
        slots = {number: {name: kept[f"optim.{number}.{name}"] for name in names} for number in range(len(self.master))}
        self.optim.load_state_dict(self.optim.state_dict() | {"state": slots})
        self._round()
        self.steps_done = steps

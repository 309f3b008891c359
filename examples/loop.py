"""The whole algorithm in one file, without processes, wire or configuration: `python examples/loop.py`.

A tiny model is to spell words backwards. It first imitates demonstrations, half of which are careless copies of the
word. Then it learns by trial from a reward alone:

    sample    groups of answers to a few words, with the weights as they are now
    wait      as long as training lags behind sampling in the asynchronous system: `staleness` steps
    reward    1 for the right answer, 0 for any other
    judge     an answer is as good as it is better than its group; a group without a difference teaches nothing
    step      clipped policy gradient, corrected for the age of what was sampled

Here it happens in turns; the system does the same with sampling and training in programs that overlap. Axes: N answers,
T their tokens laid end to end (packed), prompts included; `cu_seqlens` [N + 1] holds where each answer begins.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from astraflow.core.model import Decoder, new_model, packed_attention, packed_positions
from astraflow.core.text import Tokenizer, encode_with_spans, tiny_tokenizer
from astraflow.train_worker.algorithms.advantage import outcome_advantages
from astraflow.train_worker.algorithms.aggregation import aggregate, token_weights
from astraflow.train_worker.algorithms.losses import decoupled_ppo_loss
from astraflow.train_worker.algorithms.mismatch import token_ratio
from astraflow.train_worker.algorithms.normalisation import group_statistics

LETTERS = "abcdefgh"
WORD = 4
"""Letters of a word."""
NEW_TOKENS = WORD + 1
"""Room for the answer and its end token."""


@dataclass
class Rows:
    """N packed answers with their prompts."""

    ids: Tensor
    """int64 [T]."""
    cu_seqlens: Tensor
    """int64 [N + 1]."""
    mask: Tensor
    """bool [T], true where the model wrote."""
    logprobs: Tensor
    """float32 [T], of the model that wrote, when it wrote; 0 elsewhere."""
    group: Tensor
    """int64 [N], the word that was asked."""
    rewards: Tensor
    """float32 [N]."""

    def select(self, keep_N: Tensor) -> Rows:
        """The rows where `keep` is true."""
        keep_T = keep_N.repeat_interleave(self.cu_seqlens.diff())
        lengths = self.cu_seqlens.diff()[keep_N]
        return Rows(
            self.ids[keep_T],
            torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
            self.mask[keep_T],
            self.logprobs[keep_T],
            self.group[keep_N],
            self.rewards[keep_N],
        )


def token_logprobs(model: Decoder, ids_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Log-probability of each token given those before it in its row, [T]; a row's first token has none: 0."""
    hidden = model(ids_T, packed_positions(cu_seqlens), packed_attention(cu_seqlens))
    logprobs = model.logits(hidden[:-1]).log_softmax(-1).gather(1, ids_T[1:, None]).squeeze(1)
    first = torch.zeros(len(ids_T), dtype=torch.bool).index_fill(0, cu_seqlens[:-1], True)
    return torch.cat([logprobs.new_zeros(1), logprobs]).masked_fill(first, 0.0)


@torch.no_grad()
def sample(model: Decoder, prompts: list[list[int]], end: int) -> list[tuple[list[int], list[float]]]:
    """Continue each prompt until the end token; (ids, logprobs) of what was written. An engine would keep a cache."""
    written: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    running = list(range(len(prompts)))
    for _ in range(NEW_TOKENS):
        rows = [prompts[n] + written[n][0] for n in running]
        cu_seqlens = torch.tensor([0, *map(len, rows)]).cumsum(0)
        ids = torch.tensor([token for row in rows for token in row])
        hidden = model(ids, packed_positions(cu_seqlens), packed_attention(cu_seqlens))
        logprobs = model.logits(hidden[cu_seqlens[1:] - 1]).log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1)
        for n, token, logprob in zip(
            running, drawn[:, 0].tolist(), logprobs.gather(1, drawn)[:, 0].tolist(), strict=True
        ):
            written[n][0].append(token)
            written[n][1].append(logprob)
        running = [n for n in running if written[n][0][-1] != end]
        if not running:
            break
    return written


def roll_out(model: Decoder, tokenizer: Tokenizer, words: list[str], n_samples: int) -> Rows:
    """Ask for each word `n_samples` times and reward the answers."""
    end = tokenizer.eos_token_ids[0]
    asked = [word for word in words for _ in range(n_samples)]
    prompts = {word: tokenizer.encode_chat([{"role": "user", "content": word}]) for word in words}
    answers = sample(model, [prompts[word] for word in asked], end)
    ids, mask, logprobs, lengths, rewards = [], [], [], [0], []
    for word, (sampled, sampled_logprobs) in zip(asked, answers, strict=True):
        prompt = prompts[word]
        ids += prompt + sampled
        mask += [False] * len(prompt) + [True] * len(sampled)
        logprobs += [0.0] * len(prompt) + sampled_logprobs
        lengths.append(len(prompt) + len(sampled))
        rewards.append(float(sampled[-1] == end and tokenizer.decode(sampled) == word[::-1]))
    group = torch.arange(len(words)).repeat_interleave(n_samples)
    return Rows(
        torch.tensor(ids), torch.tensor(lengths).cumsum(0), torch.tensor(mask), torch.tensor(logprobs), group,
        torch.tensor(rewards),
    )  # fmt: skip


def judge(rows: Rows) -> tuple[Rows, Tensor]:
    """Drop groups whose answers are all alike; return the rest and each token's advantage [T] (GRPO)."""
    statistics = group_statistics(rows.rewards, rows.group)
    advantage_N = (rows.rewards - statistics.mean) / (statistics.std + 1e-6)
    kept = rows.select(~statistics.equal)
    return kept, outcome_advantages(advantage_N[~statistics.equal], kept.mask, kept.cu_seqlens)


def policy_step(model: Decoder, optimizer: torch.optim.Optimizer, rows: Rows, advantages_T: Tensor) -> dict[str, float]:
    """One step on answers that an older model may have written (decoupled PPO); how far it was off, and how steep."""
    weights = token_weights(rows.mask, rows.cu_seqlens)
    logprobs = token_logprobs(model, rows.ids, rows.cu_seqlens)
    loss = decoupled_ppo_loss(logprobs, logprobs.detach(), rows.logprobs, advantages_T, rows.mask)
    optimizer.zero_grad()
    aggregate(loss.loss, weights).backward()
    gradient = clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    ratio = token_ratio(logprobs.detach(), rows.logprobs, rows.mask)
    return {"gradient": float(gradient), "ratio": float(aggregate(ratio, weights))}


def imitate(model: Decoder, tokenizer: Tokenizer, steps: int, chance: random.Random) -> float:
    """Learn to answer like the demonstrations, careless ones included; the last steps' mean loss in nats a token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for _ in range(steps):
        encoded = [encode_with_spans(tokenizer, demonstration(chance)) for _ in range(64)]
        ids = torch.cat([torch.from_numpy(ids).long() for ids, _ in encoded])
        mask = torch.cat([torch.from_numpy(mask).bool() for _, mask in encoded])
        cu_seqlens = torch.tensor([0, *(len(ids) for ids, _ in encoded)]).cumsum(0)
        loss = aggregate(-token_logprobs(model, ids, cu_seqlens), token_weights(mask, cu_seqlens))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / len(losses[-10:])


def a_word(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=WORD))


def demonstration(chance: random.Random) -> list[dict[str, str]]:
    word = a_word(chance)
    answer = word[::-1] if chance.random() < 0.5 else word
    return [{"role": "user", "content": word}, {"role": "assistant", "content": answer}]


def learn(
    *,
    imitation_steps: int = 300,
    steps: int = 40,
    words_per_step: int = 32,
    n_samples: int = 8,
    staleness: int = 2,
    learning_rate: float = 5e-4,
    seed: int = 1,
    say: Callable[[str], None] = print,
) -> Iterator[float]:
    """Imitate, then learn by trial; yields the mean reward of what each step samples."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    tokenizer = tiny_tokenizer()
    model = new_model("tiny-0.2m", seed=seed)
    start = time.perf_counter()
    loss = imitate(model, tokenizer, imitation_steps, chance)
    say(f"imitated {imitation_steps} steps, loss {loss:.3f}, {time.perf_counter() - start:.0f} s")
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    waiting: deque[Rows] = deque()
    for step in range(1, steps + 1):
        rollout = roll_out(model, tokenizer, [a_word(chance) for _ in range(words_per_step)], n_samples)
        waiting.append(rollout)
        line = f"step {step:3}  reward {rollout.rewards.mean():.3f}"
        if len(waiting) > staleness:
            rows, advantages = judge(waiting.popleft())
            if len(rows.rewards):
                seen = policy_step(model, optimizer, rows, advantages)
                line += "  " + "  ".join(f"{name} {value:.3f}" for name, value in seen.items())
                line += f"  answers {len(rows.rewards)}"
        say(f"{line}  {time.perf_counter() - start:.0f} s")
        yield float(rollout.rewards.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--staleness", type=int, default=2, help="training steps between sampling and training")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)  # at this size more threads only wait for each other
    rewards = list(learn(steps=given.steps, staleness=given.staleness, seed=given.seed))
    print(f"reward {sum(rewards[:3]) / 3:.2f} → {sum(rewards[-3:]) / 3:.2f}")


if __name__ == "__main__":
    main()

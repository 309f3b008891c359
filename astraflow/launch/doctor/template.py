"""LAW 2 on the user's own tokenizer: does its chat template keep what was prompted and sampled, and what is said?"""

from __future__ import annotations

from astraflow.core.text.chat import check_append_only, check_demonstrations
from astraflow.errors import AstraFlowError
from astraflow.launch.doctor.finding import Finding, error, ok, warning
from astraflow.launch.doctor.subject import Subject

CHECK = "template"


def check(subject: Subject) -> list[Finding]:
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return []
    if not tokenizer.eos_token_ids:
        return [
            error(
                CHECK,
                "the tokenizer names no end token: every answer runs to max_new_tokens",
                "name eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
            )
        ]
    outside = _outside(subject, tokenizer.eos_token_ids)
    if outside:
        return [
            error(
                CHECK,
                f"the tokenizer names end tokens {outside} outside the model's vocabulary: no RaaS opens on them",
                "name others in tokenizer_config.json and generation_config.json",
            )
        ]
    try:
        broken = check_append_only(tokenizer)
    except AstraFlowError as failure:
        return [error(CHECK, str(failure), "give the tokenizer a chat template that renders user and assistant turns")]
    demonstrations = "".join(f"; {finding}" for finding in check_demonstrations(tokenizer))
    if broken:
        return [
            warning(
                CHECK,
                f"{'; '.join(broken)}: an episode of several turns branches there into a new trajectory (LAW 2)"
                + (demonstrations or "; a demonstration of several turns is trained as several rows"),
                "nothing for single-turn workflows; for several turns, a template that only appends",
            )
        ]
    return [ok(CHECK, f"only appends: what was sampled stays as it was when a conversation grows{demonstrations}")]


def _outside(subject: Subject, ends: tuple[int, ...]) -> list[int]:
    return [] if subject.model is None else [end for end in ends if not 0 <= end < subject.model.vocab_size]

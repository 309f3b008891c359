import json
from collections.abc import Callable
from pathlib import Path

from astraflow.core.text.tiny import TEMPLATE, tiny_tokenizer
from astraflow.launch.doctor import Finding, Severity, template
from astraflow.launch.doctor.subject import Subject

# Qwen3's habit: the reasoning of earlier turns is taken out once the next message arrives
REWRITES = TEMPLATE.replace(
    "(message.content or '')",
    "(message.content.split('</think>')[-1] if message.role == 'assistant' and not loop.last else message.content)",
)


def tokenizer_with(folder: Path, source: str | None = None, **config: object) -> str:
    tiny_tokenizer().save(folder)
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return f"+experiment.tokenizer_path={folder}"


def test_a_template_that_rewrites_history(one: Callable[..., Finding], tmp_path: Path) -> None:
    found = one("template", tokenizer_with(tmp_path / "t", REWRITES))
    assert found.severity is Severity.WARNING
    assert "an earlier turn is rewritten when the next message arrives" in found.message
    assert "LAW 2" in found.message


def test_a_template_that_refuses_a_conversation(one: Callable[..., Finding], tmp_path: Path) -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + TEMPLATE
    found = one("template", tokenizer_with(tmp_path / "t", source))
    assert found.severity is Severity.ERROR
    assert "one message only" in found.message


def test_a_tokenizer_without_an_end_token(one: Callable[..., Finding], tmp_path: Path) -> None:
    found = one("template", tokenizer_with(tmp_path / "t", eos_token=None))
    assert found.severity is Severity.ERROR
    assert "no end token" in found.message


def test_demonstrations_that_the_template_cannot_hold(subject: Callable[..., Subject], tmp_path: Path) -> None:
    """Nothing is wrong with it for runs that have none, so it is said beside what is right."""
    without_calls = TEMPLATE[: TEMPLATE.index("{%- for call")] + TEMPLATE[TEMPLATE.index("{{- '<|end|>' }}") :]
    [found] = template.check(subject(tokenizer_with(tmp_path / "t", without_calls)))
    assert found.severity is Severity.OK
    assert "demonstrations with tool calls are refused" in found.message
    [whole] = template.check(subject(tokenizer_with(tmp_path / "u")))
    assert "demonstrations" not in whole.message


def test_an_end_token_that_the_model_cannot_give(one: Callable[..., Finding], tmp_path: Path) -> None:
    override = tokenizer_with(tmp_path / "t")
    (tmp_path / "t" / "generation_config.json").write_text('{"eos_token_id": [6, -1, 100000]}')
    found = one("template", override)
    assert found.severity is Severity.ERROR
    assert "end tokens [-1, 100000] outside the model's vocabulary" in found.message

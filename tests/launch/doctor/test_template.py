import json
from collections.abc import Callable
from pathlib import Path

from astraflow.core.text.tiny import TEMPLATE, tiny_tokenizer
from astraflow.launch.doctor import Finding, Severity

# Qwen3's habit: the reasoning of earlier turns is taken out once the next message arrives
REWRITES = TEMPLATE.replace(
    "(message.content or '')",
    "(message.content.split('</think>')[-1] if message.role == 'assistant' and not loop.last else message.content)",
)


def tokenizer_with(folder: Path, template: str | None = None, **config: object) -> str:
    tiny_tokenizer().save(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return f"+experiment.tokenizer_path={folder}"


def test_a_template_that_rewrites_history(one: Callable[..., Finding], tmp_path: Path) -> None:
    found = one("template", tokenizer_with(tmp_path / "t", REWRITES))
    assert found.severity is Severity.WARNING
    assert "an earlier turn is rewritten when the next message arrives" in found.message
    assert "LAW 2" in found.message


def test_a_template_that_refuses_a_conversation(one: Callable[..., Finding], tmp_path: Path) -> None:
    template = "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + TEMPLATE
    found = one("template", tokenizer_with(tmp_path / "t", template))
    assert found.severity is Severity.ERROR
    assert "one message only" in found.message


def test_a_tokenizer_without_an_end_token(one: Callable[..., Finding], tmp_path: Path) -> None:
    found = one("template", tokenizer_with(tmp_path / "t", eos_token=None))
    assert found.severity is Severity.ERROR
    assert "no end token" in found.message


def test_an_end_token_that_the_model_cannot_give(one: Callable[..., Finding], tmp_path: Path) -> None:
    override = tokenizer_with(tmp_path / "t")
    (tmp_path / "t" / "generation_config.json").write_text('{"eos_token_id": [6, -1, 100000]}')
    found = one("template", override)
    assert found.severity is Severity.ERROR
    assert "end tokens [-1, 100000] outside the model's vocabulary" in found.message

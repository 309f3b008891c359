"""What templates of the Hub expect of their environment."""

from __future__ import annotations

import pytest

from astraflow.core.text.chat_template import ChatTemplate
from astraflow.errors import ConfigError, DataError


def render(source: str, **keywords: object) -> str:
    return ChatTemplate(source, {"eos_token": "<e>"}).render([{"role": "user", "content": "é\n"}], True, None, keywords)


def test_special_tokens_keywords_and_the_generation_flag_are_visible() -> None:
    assert render("{{ eos_token }}{{ add_generation_prompt }}{{ thinking }}", thinking=3) == "<e>True3"


def test_tojson_leaves_characters_as_they_are() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "é\\n"}'


def test_blocks_are_trimmed_and_loops_can_break() -> None:
    assert render("{% for i in range(9) %}\n{% if i == 2 %}{% break %}{% endif %}\n{{ i }}{% endfor %}") == "01"


def test_generation_blocks_render_their_content() -> None:
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_a_template_can_refuse_a_conversation() -> None:
    with pytest.raises(DataError, match="no tools here"):
        render("{{ raise_exception('no tools here') }}")


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(DataError, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}")
    with pytest.raises(DataError, match="append"):
        render("{{ messages.append(1) }}")


def test_a_template_that_does_not_parse_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="chat template"):
        render("{% if %}")

"""What is kept of a value is strict JSON of bounded size, without secrets, whatever comes in."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.traces.redaction import MASK, MAX_FIELD, MAX_TEXT, kept, masked, shortened

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=20), inner, max_size=20),
    max_leaves=60,
)

SECRETS = [
    "sk-" + "a1B2" * 8,
    "ghp_" + "x9" * 18,
    "github_pat_" + "x9" * 18,
    "AKIA" + "A1B2C3D4E5F6G7H8",
    "xoxb-" + "1234567890-abcdef",
    "hf_" + "q" * 30,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghij",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow" + "A" * 60 + "\n-----END RSA PRIVATE KEY-----",
]


@given(ANYTHING)
def test_what_is_kept_is_strict_json_of_bounded_size(value: object) -> None:
    encoded = json.dumps(kept(value), allow_nan=False)
    assert len(encoded) <= 3 * MAX_FIELD
    assert json.loads(encoded) == json.loads(encoded)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_masked_wherever_it_stands(secret: str) -> None:
    for value in (secret, f"export X={secret} && run", {"a": [{"b": f"got {secret}!"}]}, {secret: 1}):
        assert secret not in json.dumps(kept(value))
        assert MASK in json.dumps(kept(value))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("curl -H 'Authorization: Bearer abcdefgh12345'", "abcdefgh12345"),
        ("OPENAI_API_KEY=abcdef123456 python x.py", "abcdef123456"),
        ("psql --password hunter2hunter2 db", "hunter2hunter2"),
        ("git clone https://me:s3cr3tpw@host/x.git", "s3cr3tpw"),
        ('{"client_secret": "0123456789abcdef"}', "0123456789abcdef"),
    ],
)
def test_the_value_goes_and_its_name_stays(text: str, secret: str) -> None:
    assert secret not in masked(text)
    assert text.split(secret)[0].rstrip("'\" ")[-5:] in masked(text)


def test_a_value_under_a_secret_name_is_masked_and_a_number_is_not() -> None:
    assert kept({"password": "x", "api_key": "y", "max_tokens": 5, "token": 7}) == {
        "password": MASK,
        "api_key": MASK,
        "max_tokens": 5,
        "token": 7,
    }


def test_a_long_text_is_cut_with_the_digest_of_the_whole() -> None:
    text = "abc " * MAX_TEXT
    cut = shortened(text)
    assert cut.startswith("abc abc")
    assert hashlib.sha256(text.encode()).hexdigest() in cut
    assert len(cut) < MAX_TEXT + 200


@pytest.mark.parametrize("offset", range(-60, 5, 7))
def test_a_secret_across_the_cut_does_not_leak_its_head(offset: int) -> None:
    secret = "sk-" + "Zq9" * 20
    text = "x" * (MAX_TEXT + offset - 1) + " " + secret + " " + "y" * 9000
    assert secret[:12] not in shortened(text)


def test_a_wide_or_deep_value_is_cut() -> None:
    deep: object = "bottom"
    for _ in range(50):
        deep = [deep]
    assert "nested too deep" in json.dumps(kept(deep))
    assert "more items" in json.dumps(kept(list(range(1000))))
    wide = kept({f"key{n}": "v" * 2000 for n in range(64)})
    assert wide["cut"] is True
    assert len(wide["sha256"]) == 64

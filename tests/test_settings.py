import pytest
from pydantic import ValidationError

from decision_proxy.settings import Settings


def made(**options: object) -> Settings:
    return Settings(**{"upstream": "http://h:8000", "tokenizer": "t", **options})


def test_settings_cannot_change_while_they_are_used() -> None:
    settings = made()
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.limits.options = 3  # type: ignore[misc]


@pytest.mark.parametrize("url", ["http://h", "https://h:1/", "http://[::1]:8000", "http://h/a/b/"])
def test_any_server_over_http_or_https_is_an_upstream(url: str) -> None:
    assert made(upstream=url).upstream.host in {"h", "[::1]"}


@pytest.mark.parametrize(
    "url", ["http://u@h", "http://u:p@h", "http://h/v1", "http://h/a/v1/", "http://h#f", "http://"]
)
def test_an_upstream_with_more_than_an_address_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        made(upstream=url)


def test_the_key_shows_in_no_text_of_the_settings() -> None:
    settings = made(upstream_api_key="s3cret")
    shown = [repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())]
    assert not any("s3cret" in text for text in shown)


@pytest.mark.parametrize("key", ["", "two words", "line\n", "é", "\x7f"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        made(upstream_api_key=key)
    assert not key or key not in str(refused.value)


def test_the_chat_template_must_be_a_file_of_text(tmp_path: object) -> None:
    with pytest.raises(ValidationError, match="cannot be read"):
        made(prompt={"chat_template": str(tmp_path)})
    with pytest.raises(ValidationError, match="UTF-8"):
        made(prompt={"chat_template": "/bin/sh"})

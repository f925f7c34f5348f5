"""Sampling settings parsed from user input."""

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat.sampling_settings import SETTINGS, ChatSettings


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("temperature", "0.7", 0.7),
        ("top_p", "1", 1.0),
        ("max_tokens", "AUTO", None),
        ("top_k", "auto", None),
        ("thinking", "off", False),
    ],
)
def test_setting_is_parsed(name: str, value: str, found: object) -> None:
    changed = ChatSettings().with_value(name, value)
    assert getattr(changed, name) == found
    assert [one for one in SETTINGS if getattr(changed, one) != getattr(ChatSettings(), one)] in ([name], [])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", "hot", "temperature: expected a number from 0 to 10, or auto, got 'hot'"),
        ("temperature", "nan", "expected a number"),
        ("temperature", "1e400", "expected a number"),
        ("top_p", "0", "above 0"),
        ("top_k", "", "whole number"),
        ("seed", "-1", "or none"),
        ("draft", "maybe", "draft: expected on or off, got 'maybe'"),
        ("temprature", "1", "did you mean 'temperature'?"),
    ],
)
def test_invalid_setting_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        ChatSettings().with_value(name, value)
    assert message in str(error.value)

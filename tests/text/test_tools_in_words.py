"""Tools for models whose template knows none: all that a template would be told stands in the messages."""

from localdflash.text.chat_template import CalledTool, TemplateMessage
from localdflash.text.tools_in_words import describe_in_words

USER, SAID = TemplateMessage("user", "Will it rain?"), TemplateMessage("assistant", "It will.")
CALL = CalledTool("1", "weather", {"city": "Łódź"})


def test_calls_and_results_are_said() -> None:
    results = [TemplateMessage("tool", text, call_id=text, name="weather") for text in ("rain", "sun")]
    called = TemplateMessage("assistant", "I look.", (CALL, CALL))
    told = describe_in_words([USER, called, *results, SAID], ())
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
    assert told == [
        USER,
        TemplateMessage("assistant", f"I look.\n{call}\n{call}"),
        TemplateMessage("user", "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"),
        SAID,
    ]

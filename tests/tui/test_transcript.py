"""What stands around the text of messages, and the keys on them."""

import pytest

from localdflash.chat.messages import Attachment, Finish, Message
from localdflash.tui.captions import attachment_line, footer, header, note_run
from tests.tui.transcript_stage import shown_messages, talk, until

_NUMBERS = {"tokens": 412, "tokens_per_second": 58.4, "tau": 3.93, "ttft_ms": 184.0, "model": "small-pair"}


async def test_a_message_has_who_says_it_its_number_and_how_it_ended() -> None:
    question = Message("user", "Why?", (Attachment("file", "src/box.py", "a\nb"),))
    async with shown_messages([question, Message("assistant", "Because.", finish="stop", numbers=_NUMBERS)]) as (
        stage,
        _pilot,
    ):
        assert [row for row in stage.rows if row] == [
            "  you #1",
            "  ▸ src/box.py, 2 lines",
            "  Why?",
            "  small-pair #2",
            "  Because.",
            "  412 tokens · 58 tok/s · τ 3.9 · first token 0.18 s",
        ]


@pytest.mark.parametrize(
    ("finish", "says"),
    [
        ("stop", ""),
        ("cancelled", "stopped"),
        ("length", "cut: max_tokens is reached"),
    ],
)
def test_an_answer_that_did_not_end_by_itself_says_why(finish: Finish, says: str) -> None:
    told = footer(Message("assistant", "x", finish=finish, numbers={"tokens": 1}))
    assert told is not None
    assert told.text == (f"{says} · 1 token" if says else "1 token")


def test_names_are_sanitised_and_stay_on_one_line() -> None:
    evil = "a\x1b]0;t\x07\n\u202eb"
    answer = Message("assistant", "x", numbers={"model": evil})
    shown = [
        header(answer, 1, "").text,
        attachment_line(Attachment("file", evil, "")).text,
        note_run(evil, "note").text,
    ]
    for text in shown:
        assert not {"\x1b", "\x07", "\n", "\u202e"} & set(text)
        assert "⟦U+202E⟧b" in text


async def test_keys_pick_a_message_and_act_on_it() -> None:
    answer = Message("assistant", "```\nlast\n```")
    messages = [Message("user", "```\none\n```\n~~~py\ntwo\x1b\n~~~\n"), answer]
    async with shown_messages(messages) as (stage, pilot):
        for key in ("c", "k", "k", "c", "2", "e", "r", "f", "j", "c", "left_square_bracket", "1"):
            await pilot.press(key)
    assert stage.posted[:2] == [(answer.text, "message 2"), (messages[0].text, "message 1")]
    assert stage.posted[-5:-1] == [(0, "edit"), (0, "retry"), (0, "fork"), (answer.text, "message 2")]


async def test_code_blocks_are_copied_as_they_were_received() -> None:
    code = "def f():\n\treturn '\x1b'\n"
    messages = [Message("assistant", f"```\none\n```\n\n```python\n{code}```\n")]
    async with shown_messages(messages) as (stage, pilot):
        await pilot.press("2", "3")
        assert stage.transcript.code_blocks() == ["one\n", code]
    assert stage.posted == [(code, "code block 2")]


async def test_thoughts_are_unfolded_of_one_message_or_of_all() -> None:
    answers = [Message("assistant", f"<think>\n{word} so\n</think>\n\nAnswer") for word in ("secretly", "privately")]
    async with shown_messages(answers) as (stage, pilot):

        async def seen() -> list[str]:
            await pilot.pause()
            return [word for word in ("secretly", "privately") if word in stage.screen_text]

        assert await seen() == []
        await pilot.press("enter")
        assert await seen() == ["privately"]
        stage.transcript.set_view(thoughts=True)
        assert await seen() == ["secretly"]
        await pilot.press("enter")
        assert await seen() == ["secretly", "privately"]


async def test_it_works_without_a_screen() -> None:
    """Before it is mounted, and while it is hidden."""
    async with shown_messages(talk(2)) as (stage, pilot):
        transcript = stage.transcript
        transcript.display = False
        await pilot.pause()
        transcript.show([])
        transcript.add(Message("assistant", ""))
        transcript.feed("one ")
        transcript.feed("two")
        await until(lambda: not transcript._queue)
        transcript.set_view(tinted=True)
        transcript.note("a note")
        transcript.action_highlight(-1)
        transcript.finish(Message("assistant", "one two three", finish="stop"))
        transcript.display = True
        await until(lambda: "one two three" in stage.screen_text)
        assert "a note" in stage.screen_text

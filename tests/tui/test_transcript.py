"""What stands around the text of messages, and the keys on them."""

import pytest
from textual.pilot import Pilot

from localdflash.chat.messages import Attachment, Finish, Message, StepRecord
from localdflash.tui.captions import attachment_line, footer, header, note_run
from tests.tui.transcript_stage import Stage, run, talk, until

_NUMBERS = {"tokens": 412, "tokens_per_second": 58.4, "tau": 3.93, "ttft_ms": 184.0, "model": "small-pair"}


def test_a_message_has_who_says_it_its_number_and_how_it_ended() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        assert [row for row in stage.rows if row] == [
            "  you #1",
            "  ▸ src/box.py, 2 lines",
            "  Why?",
            "  small-pair #2",
            "  Because.",
            "  412 tokens · 58 tok/s · 3.9 per verify · first token",
            "  0.18 s",
        ]

    question = Message("user", "Why?", (Attachment("file", "src/box.py", "a\nb"),))
    run(test, [question, Message("assistant", "Because.", finish="stop", numbers=_NUMBERS)])


@pytest.mark.parametrize(
    ("finish", "says"),
    [
        ("stop", ""),
        ("cancelled", "stopped"),
        ("context", "cut: the context is full"),
        ("gone", "the engine went away"),
        ("length", "cut: max_tokens is reached"),
    ],
)
def test_an_answer_that_did_not_end_by_itself_says_why(finish: Finish, says: str) -> None:
    told = footer(Message("assistant", "x", finish=finish, numbers={"tokens": 1}))
    assert told is not None
    assert told.text == (f"{says} · 1 token" if says else "1 token")


@pytest.mark.parametrize("numbers", [{"tokens": "many"}, {"tokens": -1}, {"tau": float("nan")}, {"ttft_ms": None}, {}])
def test_numbers_that_make_no_sense_are_left_out(numbers: dict[str, object]) -> None:
    assert footer(Message("assistant", "x", finish="stop", numbers=numbers)) is None


def test_without_drafting_there_is_no_tau() -> None:
    told = footer(Message("assistant", "x", finish="stop", numbers={**_NUMBERS, "draft": False}))
    assert told is not None
    assert "verify" not in told.text


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


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("/models/qwen/Qwen3-4B.gguf", "Qwen3-4B"),
        ("hf:o/n/x.gguf", "x"),
        ("embedded", "embedded"),
        ("/", "answer"),
    ],
)
def test_a_model_is_named_without_its_path(named: str, shown: str) -> None:
    assert header(Message("assistant", "x", numbers={"model": named}), 2, "").text == f"{shown} #2"
    assert header(Message("assistant", "x"), 2, named).text == f"{shown} #2"


def test_an_attachment_tells_how_long_it_is() -> None:
    lines = [attachment_line(Attachment("paste", "p", text)).text for text in ("", "a", "a\n", "a\nb", "a\nb\n")]
    assert lines == ["▸ p, 0 lines", "▸ p, 1 line", "▸ p, 1 line", "▸ p, 2 lines", "▸ p, 2 lines"]


def test_the_name_of_the_model_is_the_transcripts_where_the_answer_does_not_say() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        assert "answer #1" in stage.screen_text
        stage.transcript.model = "embedded"
        await pilot.pause()
        assert "embedded #1" in stage.screen_text

    run(test, [Message("assistant", "x")])


def test_notes_stand_under_the_last_message_and_go_with_another_conversation() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.note("before any message")
        stage.transcript.add(Message("user", "question"))
        stage.transcript.note("it \x1b[31mfailed", "error")
        await pilot.pause()
        assert [row.strip() for row in stage.rows if row] == [
            "· before any message",
            "you #1",
            "question",
            "✗ it ␛[31mfailed",
        ]
        stage.transcript.show([Message("user", "other")])
        assert [row.strip() for row in stage.rows if row] == ["you #1", "other"]

    run(test)


def test_keys_pick_a_message_and_act_on_it() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        for key in ("c", "k", "k", "c", "2", "e", "r", "f", "j", "c", "left_square_bracket", "1"):
            await pilot.press(key)

    answer = Message("assistant", "```\nlast\n```")
    messages = [Message("user", "```\none\n```\n~~~py\ntwo\x1b\n~~~\n"), answer]
    stage = Stage(messages)
    stage = run(test, messages)
    assert stage.posted[:2] == [(answer.text, "message 2"), (messages[0].text, "message 1")]
    assert stage.posted[-5:-1] == [(0, "edit"), (0, "retry"), (0, "fork"), (answer.text, "message 2")]


def test_code_blocks_are_copied_as_they_were_received() -> None:
    code = "def f():\n\treturn '\x1b'\n"

    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        await pilot.press("2", "3")
        assert stage.transcript.code_blocks() == ["one\n", code]

    stage = run(test, [Message("assistant", f"```\none\n```\n\n```python\n{code}```\n")])
    assert stage.posted == [(code, "code block 2")]


def test_a_picked_message_has_a_bar_and_comes_into_view() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        for _ in range(10):
            await pilot.press("k")
        assert stage.rows[0] == "│ you #31"
        assert not stage.rows[-1].startswith("│")
        await pilot.press("j")
        assert any(row.startswith("│ answer #32") for row in stage.rows)

    run(test, talk(20))


def test_the_acceptance_view_shows_the_source_of_answers() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.tinted = True
        await pilot.pause()
        shown = stage.screen_text
        assert "  **bold** text" in shown
        assert " lookup 1  the model itself 1 in 2 steps, every second\n" in shown
        stage.transcript.tinted = False
        await pilot.pause()
        assert "2 steps" not in stage.screen_text

    steps = (StepRecord("lookup", 1, 1, (8,), 1.0), StepRecord("", 0, 0, (5,), 1.0))
    run(test, [Message("user", "**mine**"), Message("assistant", "**bold** text", steps=steps)])


def test_thoughts_are_unfolded_of_one_message_or_of_all() -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        async def seen() -> list[str]:
            await pilot.pause()
            return [word for word in ("secretly", "privately") if word in stage.screen_text]

        assert await seen() == []
        await pilot.press("enter")
        assert await seen() == ["privately"]
        stage.transcript.thoughts = True
        assert await seen() == ["secretly"]
        await pilot.press("enter")
        assert await seen() == ["secretly", "privately"]

    answers = [Message("assistant", f"<think>\n{word} so\n</think>\n\nAnswer") for word in ("secretly", "privately")]
    run(test, answers)


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (3, 2), (200, 60)])
def test_no_size_of_the_screen_is_too_small(size: tuple[int, int]) -> None:
    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.feed("more 錯 text\n" * 50, StepRecord("dflash", 8, 2, (3, 4, 5), 1.0))
        await until(lambda: not stage.transcript.busy)
        stage.transcript.note("a note that is long enough to be wrapped")
        stage.transcript.tinted = True
        await pilot.press("k", "home", "pageup", "end", "pagedown")
        stage.transcript.finish(Message("assistant", "all of it"))
        await pilot.pause()
        assert len(stage.rows) == size[1]

    run(test, [*talk(3), Message("assistant", "")], size)


def test_it_works_without_a_screen() -> None:
    """Before it is mounted, and while it is hidden."""

    async def test(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.display = False
        await pilot.pause()
        transcript.show([])
        transcript.add(Message("assistant", ""))
        transcript.feed("one ")
        transcript.feed("two")
        await until(lambda: not transcript.busy)
        transcript.tinted = True
        transcript.note("a note")
        transcript.action_pick(-1)
        transcript.finish(Message("assistant", "one two three", finish="stop"))
        transcript.display = True
        await until(lambda: "one two three" in stage.screen_text)
        assert "a note" in stage.screen_text

    run(test, talk(2))

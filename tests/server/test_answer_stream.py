"""Answers in progress, on a simulated scheduler."""

from unittest.mock import Mock

from localdflash.engine.generate import Request
from localdflash.engine.scheduler import EngineJob
from localdflash.server.answer_stream import AnswerStream


async def test_a_newer_request_cancels_a_completion_that_continues_past_its_end() -> None:
    """The continuation itself cancels no request of its document."""
    submitted, documents = list[EngineJob](), list[str | None]()

    def submit(job: EngineJob) -> None:
        submitted.append(job)
        documents.append(job.document)

    scheduler, text = Mock(submit=submit), Mock(**{"resumes.return_value": True, "finish.return_value": ""})
    answer = AnswerStream(Request([1], 9), text, 10, scheduler, Mock(), urgent=True, seconds=0.0)
    answer._submit(answer.request, "a.py")
    submitted[0].generation.ids += [2, 0]
    answer.request.finish_reason = "stop"
    answer._on_end(None)
    assert documents == ["a.py", None]
    assert submitted[1].document == "a.py"

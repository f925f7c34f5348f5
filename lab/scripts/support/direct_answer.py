"""Answers without a server, with which tests and `soak.py` compare the daemon's answers."""

from typing import NamedTuple

from localdflash.engine.generate import generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.generation import GenerationRequest
from localdflash.text.stream import AnswerText


class DirectAnswer(NamedTuple):
    """Text and token ids of an answer, and why it ended: "stop", "length", "context", or the reason of its `ending`."""

    text: str
    ids: list[int]
    finish: str


def answer_directly(loaded: LoadedPair, prepared: GenerationRequest) -> DirectAnswer:
    """Run a request to its end on a loaded pair; the request holds its statistics afterwards."""
    request, ids, pieces = prepared.requests[0], list[int](), list[str]()
    ending = prepared.ending() if prepared.ending else None
    text = AnswerText(prepared.make_decoder(loaded.tokenizer), request.ends, prepared.stops, ending, prepared.is_exempt)
    for step in generate(loaded.pair, request):
        ids += step.tokens
        pieces.append(text.push(step.tokens))
        if text.stopped:
            request.finish_reason = "stop"
            break
    pieces.append(text.finish())
    reason = request.finish_reason
    return DirectAnswer("".join(pieces), ids, text.reason if reason == "stop" and text.reason else reason)

"""Let a target answer many prompts at once with torch on a GPU; store the same as `batched_answers`.

A batch is decoded with a KV cache. Another pass over its prompts and answers returns features and likeliest tokens. The
weights are those of the quantized target, activations are bfloat16: few answers differ from those of another backend.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.lab.train import batched_answers
from localdflash.lab.train.batched_answers import OpenAnswer, PromptEncoder
from localdflash.lab.train.drafter_run import autocast_on
from localdflash.lab.train.questions import Question
from localdflash.lab.train.regenerate import answer
from localdflash.lab.train.resumable_run import Reporter
from localdflash.lab.train.stored_answers import AnswerWriter, find_likeliest

READ_SEQUENCES = 64  # of a pass for features; 16,000 rows of logits
SHORT_ANSWER = 64  # tokens: the last batches have as many prompts as answers of this length would need


def answer_prompts(
    target: Decoder,
    taps: Sequence[int],
    sequences: int,
    encoder: PromptEncoder,
    prompts: Sequence[Question],
    writer: AnswerWriter,
    tokens: int,
    reporter: Reporter,
) -> None:
    """Answer prompts, `sequences` at a time, until about `tokens` answer ids are stored or no prompt is left."""
    progress, waiting = batched_answers.begin(encoder, prompts, writer, tokens)
    device = target.embed_tokens.weight.device.type
    while (left := tokens - progress.answered) > 0:
        batch = list(islice(waiting, min(sequences, left // SHORT_ANSWER + 1)))
        if not batch:
            break
        limits = [batched_answers.max_answer(prompt.kind) for prompt, _ in batch]
        with autocast_on(device):
            generated = answer(target, [np.array(ids) for _, ids in batch], limits, encoder.ends)
        answers = []
        for (prompt, ids), new in zip(batch, generated, strict=True):
            open_answer = OpenAnswer(prompt, len(ids), [*ids, *new])
            open_answer.cut_at_repetition()
            answers.append(open_answer)
        for start in range(0, len(answers), READ_SEQUENCES):
            group = answers[start : start + READ_SEQUENCES]
            _read(target, taps, group)
            for each in group:
                reason = each.end_reason(encoder.ends)
                assert reason
                batched_answers.store(each, reason, writer, progress)
            reporter.move(progress.share(0), progress.line(0))
        writer.flush()
    batched_answers.end(encoder, writer, progress, reporter)


@torch.inference_mode()
def _read(target: Decoder, taps: Sequence[int], answers: Sequence[OpenAnswer]) -> None:
    """Set the features of answers and the likeliest tokens at each of their positions."""
    device = target.embed_tokens.weight.device
    rows, prompts = [len(each.ids) - 1 for each in answers], [each.prompt_length for each in answers]
    ids = pad_sequence([torch.tensor(each.ids[:-1]) for each in answers], batch_first=True).to(device)
    with autocast_on(device.type):
        hidden, layers = target(ids, torch.arange(ids.shape[1], device=device), causal, taps)
        spans = enumerate(zip(prompts, rows, strict=True))
        chosen = torch.cat([hidden[i, prompt - 1 : end] for i, (prompt, end) in spans])
        likely = find_likeliest(target.logits(chosen).float())
    features = torch.cat(layers, -1)
    features = torch.cat([features[i, :end] for i, end in enumerate(rows)])
    largest = torch.finfo(torch.float16).max
    stored = features.clamp(-largest, largest).half().cpu().numpy()
    counts = [end - prompt + 1 for prompt, end in zip(prompts, rows, strict=True)]
    parts = np.split(stored, np.cumsum(rows)[:-1]), np.split(likely, np.cumsum(counts)[:-1])
    for each, *found in zip(answers, *parts, strict=True):
        each.taps, each.likely = [found[0]], [found[1]]

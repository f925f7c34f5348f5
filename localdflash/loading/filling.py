"""Whether a pair can fill in code at a cursor, as its file's header says: known before anything is loaded."""

from localdflash.base.errors import ModelError
from localdflash.models.registry.registry import load_registry
from localdflash.models.weights.gguf import GGUFHeader, read_header
from localdflash.text.fim import detect, format_of


def check_fills(spec: str) -> None:
    """ModelError if the pair was not trained to fill in the middle. One whose file is not here is not judged."""
    pair = load_registry().resolve(spec)
    if pair.fim:
        format_of(pair.fim)
        return
    if not pair.target.path.is_file():
        return
    vocabulary = _HeaderVocabulary(read_header(pair.target.path))
    try:
        detect(vocabulary)
    except ModelError as error:
        raise ModelError(f"{pair.id}: {error}; docs/models.md says how to use it at the end of a file") from None


def fills(spec: str) -> bool:
    """Whether `check_fills` finds nothing wrong."""
    try:
        check_fills(spec)
    except ModelError:
        return False
    return True


class _HeaderVocabulary:
    """The tokens of a file by their spelling; llama.cpp may count fewer of them as special, never more."""

    def __init__(self, header: GGUFHeader) -> None:
        self._header = header
        self._spelled = frozenset(header.require("tokenizer.ggml.tokens", list))

    def has_special(self, spelling: str) -> bool:
        """See `localdflash.text.fim.Vocabulary`."""
        return spelling in self._spelled

    def metadata(self, key: str) -> str | None:
        """See `localdflash.text.fim.Vocabulary`."""
        value = self._header.metadata.get(key)
        return value if isinstance(value, str) else None

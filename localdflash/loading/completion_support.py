"""Check by a file's header that a pair completes code, before the pair is loaded."""

from localdflash.base.errors import ModelError
from localdflash.models.registry.registry import load_registry
from localdflash.models.weights.gguf import GGUFHeader, read_header
from localdflash.text.edit_formats import detect_edit_format
from localdflash.text.fim_formats import detect, format_of


def require_completion(spec: str) -> None:
    """Raise ModelError if the pair neither fills in code nor predicts edits; a pair whose file is missing passes."""
    pair = load_registry().resolve(spec)
    if pair.fim:
        format_of(pair.fim)
    if pair.fim or pair.next_edit or not pair.target.path.is_file():
        return
    vocabulary = _HeaderVocabulary(read_header(pair.target.path))
    if detect_edit_format(vocabulary, pair.target.path.name):
        return
    try:
        detect(vocabulary)
    except ModelError as error:
        raise ModelError(f"{pair.id}: {error}; to complete at the end of a file only, see docs/models.md") from None


def supports_completion(spec: str) -> bool:
    """Return whether the pair passes `require_completion`."""
    try:
        require_completion(spec)
    except ModelError:
        return False
    return True


class _HeaderVocabulary:
    """`ModelFacts` of a file's header. Every token counts as special; in a loaded model fewer may."""

    def __init__(self, header: GGUFHeader) -> None:
        self._header = header
        self._tokens = frozenset(header.require("tokenizer.ggml.tokens", list))

    def has_special(self, spelling: str) -> bool:
        """See `ModelFacts`."""
        return spelling in self._tokens

    def metadata(self, key: str) -> str | None:
        """See `ModelFacts`."""
        value = self._header.metadata.get(key)
        return value if isinstance(value, str) else None

"""Find the FIM format of a model by its name or by its template."""

from dataclasses import replace

from localdflash.text.fim_formats import FORMATS, FimFormat

# A word of a model's name, and its format; the first that is in the name counts.
_NAMED = {
    "codegemma": "codegemma",
    "granite4": "granite4",
    "granite-4": "granite4",
    "granite": "granite",
    "qwen": "qwen",
    "mellum": "mellum",
    "starcoder2": "starcoder2",
    "starcoder": "starcoder",
    "deepseek": "deepseek",
    "codestral": "codestral",
    "seed-coder": "seed",
    "glm": "glm",
}


def of_name(*names: str) -> FimFormat | None:
    """Return the format of the first name that contains a known word."""
    for name in names:
        for word, form in _NAMED.items():
            if word in name.lower():
                return FORMATS[form]
    return None


def of_template(template: str, *names: str) -> FimFormat | None:
    """Return the format whose markers a template contains; among families that share them, the one of a name."""
    spelled = [form for form in FORMATS.values() if form.markers and all(marker in template for marker in form.markers)]
    if not spelled:
        return None
    told = of_name(*names)
    if told and any(form.markers == told.markers for form in spelled):
        return told
    return replace(spelled[0], order="psm", files=None)

"""Change one setting of config.toml; comments and the other settings stay as they are."""

import json
import tomllib

from localdflash.base.errors import UsageError
from localdflash.base.files.json_file import replace_file
from localdflash.base.files.strict_toml import key_lines
from localdflash.models.config import config_file, convert_value, load_config


def set_value(name: str, value: str) -> None:
    """Write a setting `table.key`; UsageError if there is no such setting or value, or the file has an unusual form."""
    load_config()  # a file that is wrong already is not changed
    converted = convert_value(name, value)
    table, _, key = name.partition(".")
    file = config_file()
    before = file.read_text("utf-8") if file.exists() else ""
    stored = converted if isinstance(converted, int | float) else value
    after = _edited(before, table, key, stored)
    values = tomllib.loads(before)
    values.setdefault(table, {})[key] = stored
    if tomllib.loads(after) != values:
        raise UsageError(f"{file}: {name} is written in a way that cannot be changed here; edit the file")
    replace_file(file.resolve(), after)  # where a link leads


def _edited(text: str, table: str, key: str, value: str | float) -> str:
    """Return the text of the file with one line replaced or added."""
    lines, places = text.splitlines(), key_lines(text)
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    if at := places.get((table, key)):
        lines[at - 1] = line
    elif at := places.get((table,)):
        lines.insert(at, line)
    else:
        lines += [f"[{table}]", line] if not lines else ["", f"[{table}]", line]
    return "\n".join(lines) + "\n"

import pytest

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.models.config import config_file, load_config
from localdflash.models.config_edit import set_value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[chat]\npair = "qwen3-4b"\n'),
        (
            "# mine\n[model]\nthreads = 2 # cores\n",
            '# mine\n[model]\nthreads = 2 # cores\n\n[chat]\npair = "qwen3-4b"\n',
        ),
        ('[chat]\npair = "embedded"\n[server]\nport = 1\n', '[chat]\npair = "qwen3-4b"\n[server]\nport = 1\n'),
        ("[chat]\n# here\n[server]\n", '[chat]\npair = "qwen3-4b"\n# here\n[server]\n'),
    ],
)
def test_one_line_changes_and_the_rest_stays(before: str, after: str) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(before, "utf-8")
    set_value("chat.pair", "qwen3-4b")
    assert config_file().read_text("utf-8") == after
    assert load_config().chat.pair == "qwen3-4b"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("chat.pairs", "embedded", "did you mean 'chat.pair'?"),
        ("model.threads", "many", "expected a whole number"),
        ("model.backend", "vulkan", "expected one of"),
    ],
)
def test_a_wrong_name_or_value_changes_nothing(name: str, value: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("?", r"\?")):
        set_value(name, value)
    assert not config_file().exists()


@pytest.mark.parametrize("before", ['chat.pair = "embedded"\n', "[chat\n", 'chat = { pair = "embedded" }\n'])
def test_a_file_of_another_form_is_left_alone(before: str) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(before, "utf-8")
    with pytest.raises(LocaldflashError):
        set_value("chat.pair", "qwen3-4b")
    assert config_file().read_text("utf-8") == before

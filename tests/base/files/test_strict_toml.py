from localdflash.base.files.strict_toml import key_lines

TEXT = """\
# [no] table = {
a = 1
"x = 1" = '''
[a]
b = 2'''

[[ pair ]] # [[other]]
id = "# ]"
files = [ "a", # ]
  [2,
 3], ]
[pair."in.ner"]
key = { k = "v" }
[[pair]]
id = '"'
"""


def test_lines_of_keys() -> None:
    found = key_lines(TEXT)
    assert (found["a",], found["x = 1",]) == (2, 3)
    assert [found["pair", 0, key] for key in ("id", "files", "in.ner")] == [8, 9, 12]
    assert [found[where] for where in (("pair", 0, "in.ner", "key"), ("pair", 1), ("pair", 1, "id"))] == [13, 14, 15]

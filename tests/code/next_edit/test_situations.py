"""Thirty situations of the kinds that users meet: what is proposed in each, to the last place, counted."""

import time

import pytest

from tests.code.next_edit.marks import check, final_texts

PYTHON = {
    "a subscript becomes a call": (
        'def load(config):\n    host = config«["host"]|.get("host")»\n    port = int(config«["port"]|.get("port")»)\n'
        "    user = config‹[\"user\"]|.get(\"user\")›\n    return host, port, user, config‹['zone']|['zone']›\n"
    ),
    "a subscript becomes another": (
        'def show(event):\n    print(event«|["body"]»["id"])\n    log(event«|["body"]»["name"], 1)\n'
        '    return event‹|["body"]›["time"]\n'
    ),
    "rows get names": (
        "for row in rows:\n    a = row[«0|'id'»]\n    use(row[«0|'id'»])\n    print(1)\n    put(row[‹0|'id'›])\n"
    ),
    "endings of files": (
        'A = read("one.«json|toml»")\nif x:\n    b = read("two.«json|toml»", 1)\n\n\ndef f():\n'
        '    return [read("three.‹json|toml›"), "json"]\n'
    ),
    "paths get a version": (
        'client.get("/«|v1/»users")\nif a:\n    client.post("/«|v1/»users/new", 1)\n\nb = client.put("/‹|v1/›items")\n'
    ),
    "one word of messages": (
        'raise ValueError("«bad|invalid» port")\nx = 1\nraise TypeError("«bad|invalid» host")\n\n'
        'y = KeyError("‹bad|invalid› name")\n'
    ),
    "a string that the file has often": (
        'a = f("«utf8|utf-8»")\n\n\ndef g():\n    x = open("a", "utf8")\n    return h("utf8")\n'.replace(
            '"utf8"', '"‹utf8|utf-8›"'
        )
    ),
    "return types grow": (
        "def a(x) -> str«| | None»:\n    return x\n\n\ny = 1\n\n\ndef b(x: str) -> str«| | None»:\n    return x\n\n\n"
        "class C:\n    def c(self) -> str‹| | None›:\n        return ''\n"
    ),
    "return types change": (
        "def a() -> «List|list»[int]: ...\n\nx = 1\n\ndef b() -> «List|list»[str]: ...\n\nx = 2\n\n"
        "def c() -> ‹List|list›[bool]: ...\n"
    ),
    "print becomes a logger": (
        "def f(a):\n    «print|logger.info»(a)\n    if a:\n        ‹print|logger.info›('x', a)\n    for b in a:\n"
        "        ‹print|logger.info›(b)\n    return ‹print|logger.info›()\n"
    ),
    "two calls get a module": (
        "x = «loads|json.loads»(a)\nif x:\n    y = [«loads|json.loads»(b)]\n\n\ndef f():\n"
        "    return ‹loads|json.loads›(c)\n"
    ),
    "a call is awaited": (
        "async def f(s):\n    a = «|await »s.read(1)\n    if a:\n        b = [«|await »s.read(2)]\n"
        "    return ‹|await ›s.read(3)\n"
    ),
    "an assertion turns round": (
        "class T:\n    def a(self):\n        self.«assertEquals|assertEqual»(1, x)\n\n    def b(self):\n        y()\n"
        "        self.«assertEquals|assertEqual»(2, x)\n\n    def c(self):\n"
        "        self.‹assertEquals|assertEqual›(3, x)\n"
    ),
    "a field of a dataclass": (
        "@dataclass\nclass User:\n    «name|title»: str\n    age: int\n\n    def show(self):\n"
        "        return self.‹name|title›\n\n\n"
        "def f(user: User, other):\n    print(user.‹name|title›, other.name)\n"
        "    return User(‹name|title›='x', age=2)\n"
    ),
    "a field of what a loop has": (
        "class Item:\n    «cost|price»: int\n\n\ndef total(items: list[Item]):\n    found = 0\n    for item in items:\n"
        "        found += item.‹cost|price›\n    return found\n"
    ),
    "a field of what was made": (
        "class Box:\n    «size|width» = 1\n\n\nbox = Box()\nprint(box.‹size|width›, other.size)\n"
    ),
    "a parameter with a type": (
        "def send(text«|, urgent: bool»):\n    return text\n\n\nsend('a'‹|, urgent=False›)\n"
        "x = send(text='b'‹|, urgent=False›)\n"
    ),
    "a parameter that may be none": (
        "def run(job«|, timeout: float | None»):\n    return job\n\n\nrun(1‹|, timeout=None›)\n"
        "run(2‹|, timeout=None›)\n"
    ),
    "an argument that one call got": (
        "def run(job, timeout):\n    return job\n\n\nrun(1«|, 5»)\nif x:\n    run(2‹|, 5›)\nrun(3‹|, 5›)\n"
    ),
    "keys of dicts": ("a = {'«Name|name»': 1}\nb = [1]\nc = {'«Name|name»': 2, 'x': 1}\nd = f({'‹Name|name›': 3})\n"),
    "a parameter's type": (
        "def a(path: «str|Path»): ...\n\nx = 1\n\ndef b(n: int, path: «str|Path»): ...\n\nx = 2\n\n"
        "def c(path: ‹str|Path›, s: str): ...\n"
    ),
    "a comparison": (
        "if x«== None| is None»:\n    f()\nwhile a:\n    if y«== None| is None»:\n        g()\n"
        "h = z‹== None| is None›\n"
    ),
}
SCRIPT = {
    "any becomes unknown": (
        "function f(a: «any|unknown»): ‹any|unknown› {}\nconst x: ‹any|unknown› = 1;\n"
        "interface A { b: ‹any|unknown› }\n"
    ),
    "a field of an interface": (
        "interface User { «name|title»: string; age: number }\nfunction f(user: User, o: any) {\n"
        "  console.log(o.name);\n"
        "  return user.‹name|title›;\n}\nconst u: User = { ‹name|title›: 'a', age: 1 };\n"
    ),
    "types of like fields": (
        "interface A {\n  userId: «number|string»;\n  count: number;\n}\ninterface B {\n"
        "  orderId: «number|string»;\n  size: number;\n"
        "  itemId: ‹number|string›;\n}\n"
    ),
    "the console becomes a logger": (
        "function f(a) {\n  «console.log|logger.info»(a);\n  if (a) { ‹console.log|logger.info›('x', a); }\n}\n"
        "const g = () => ‹console.log|logger.info›(1);\n"
    ),
    "requires become imports' names": (
        "const a = «require|load»('a');\nlet b = [«require|load»('b')];\nfunction f() { return ‹require|load›('c'); }\n"
    ),
    "a return type of promises": (
        "async function a(): Promise<«User|Account»> {}\nlet x;\nasync function b(): Promise<«User|Account»> {}\n"
        "let y;\n"
        "async function c(): Promise<‹User|Account›> {}\n"
    ),
    "a parameter with a type of a script": (
        "function send(text: string«|, urgent: boolean») {}\nsend('a'‹|, false›);\nconst x = send('b'‹|, false›);\n"
    ),
    "a chain is optional": (
        "const a = props.user«.|?.»name;\nfunction f(props) {\n  g(props.user«.|?.»age);\n"
        "  return props.user‹.|?.›city;\n}\n"
    ),
}


ALONE = {  # one change, or two that differ, after which nothing is proposed
    "a builtin": "x = «len|size»(a)\ny = f(len(b))\nz = f(len(c))\nw = g(len(d))\n",
    "a type of one parameter": "def f(a: «str|bytes»): ...\n\n\ndef g(a: str, b: str, c: str): ...\n",
    "a key": "a = {'«name|title»': 1}\nb = {'name': 2}\nc = {'name': 3}\nd = {'name': 4}\n",
    "a method of one list": "a.«append|add»(1)\nprint()\nb.append(1)\nc.append(1)\nd.append(1)\n",
    "a short string": "a = open(b, '«r|rb»')\nif x:\n    c = open(d, 'r')\n    e = open(f, 'r')\n",
    "a number": "x = f(«10|20»)\nif y:\n    f(10)\n    g(10)\n    h(10)\n",
    "two changes that differ": "x = f('one.«json|toml»')\nif y:\n    f('two.«json|yaml»')\n    g('three.json')\n",
    "fields of another class": (
        "class A:\n    «name|title»: str\n\n\nclass B:\n    name: str\n\n\ndef f(b: B, c):\n"
        "    return b.name + c.name\n"
    ),
    "a variable bound twice": (
        "class A:\n    «size|width» = 1\n\n\ndef f(a: A):\n    if a:\n        a = other()\n    return a.size\n"
    ),
}


def test_nothing_is_proposed_after_a_change_that_is_alone() -> None:
    for name, marked in ALONE.items():
        start, _, come = final_texts("python", marked)
        assert come == start, name


def test_situations() -> None:
    found = {}
    for language, situations in (("python", PYTHON), ("typescript", SCRIPT)):
        for name, marked in situations.items():
            start, expected, come = final_texts(language, marked)
            found[name] = "right" if come == expected else "silent" if come == start else f"wrong: {come}"
    counts = {kind: [name for name in found if found[name].startswith(kind)] for kind in ("right", "wrong", "silent")}
    assert len(found) == 30
    assert (len(counts["right"]), counts["wrong"]) == (30, []), found


@pytest.mark.parametrize(
    "line",
    [
        "row[{}, 1]",
        "row.get('a', row‹['a.b', 'c.d', 'e.f', 'x.y']|.get('a.b', 'c.d', 'e.f', 'x.y')›, {}, 1)",
    ],
)
def test_a_long_line_cannot_take_exponential_time(line: str) -> None:
    edits = (
        "if a:\n    r = row«['a.b', 'c.d', 'e.f', 'x.y']|.get('a.b', 'c.d', 'e.f', 'x.y')»\n"
        "q(row«['k-l', 'm-n', 'o-p', 'q-r']|.get('k-l', 'm-n', 'o-p', 'q-r')»)\n"
    )
    before = time.monotonic()
    check("python", edits + line.format(", ".join(f"'v {number}'" for number in range(250))) + "\n")
    assert time.monotonic() - before < 3

"""Address values inside of nested dictionaries and lists."""


class PointerError(LookupError):
    """A pointer does not lead to a value."""


def split_pointer(pointer):
    """Split a pointer such as ``/items/0/name`` into its unescaped parts. The empty
    pointer refers to the whole document.
    """
    if pointer == "":
        return []
    if not pointer.startswith("/"):
        raise ValueError("a pointer must start with a slash")
    parts = pointer[1:].split("/")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def step(container, part):
    """Return the child of ``container`` that ``part`` refers to."""
    if isinstance(container, dict):
        if part not in container:
            raise PointerError(f"no member {part!r}")
        return container[part]
    if isinstance(container, list):
        if not part.isdigit() or int(part) >= len(container):
            raise PointerError(f"no element {part!r}")
        return container[int(part)]
    raise PointerError(f"cannot look up {part!r} in {type(container).__name__}")


def get(document, pointer):
    """Return the value that ``pointer`` refers to."""
    value = document
    for part in split_pointer(pointer):
        value = step(value, part)
    return value


def put(document, pointer, value):
    """Replace the value at ``pointer`` or add it to its parent. A final part of
    ``-`` appends to a list.
    """
    parts = split_pointer(pointer)
    if not parts:
        raise ValueError("cannot replace the whole document")
    parent = document
    for part in parts[:-1]:
        parent = step(parent, part)
    last = parts[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif last == "-":
        parent.append(value)
    else:
        parent[int(last)] = value


def walk(document, prefix=""):
    """Yield the pointer and the value of every leaf, depth first."""
    if isinstance(document, dict):
        children = document.items()
    elif isinstance(document, list):
        children = enumerate(document)
    else:
        yield prefix, document
        return
    for key, child in children:
        escaped = str(key).replace("~", "~0").replace("/", "~1")
        yield from walk(child, f"{prefix}/{escaped}")

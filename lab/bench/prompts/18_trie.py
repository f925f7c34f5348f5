"""A prefix tree that maps strings to values."""


class TrieNode:
    """One character on the way to a key."""

    __slots__ = ("children", "value", "is_key")

    def __init__(self):
        self.children = {}
        self.value = None
        self.is_key = False


class Trie:
    """A dictionary of strings with fast lookup by prefix."""

    def __init__(self):
        self._root = TrieNode()

    def insert(self, key, value=None):
        """Store ``value`` under ``key`` and return True if the key is new."""
        node = self._root
        for character in key:
            node = node.children.setdefault(character, TrieNode())
        is_new = not node.is_key
        node.is_key = True
        node.value = value
        return is_new

    def _find(self, prefix):
        """Return the node at the end of ``prefix``, or None."""
        node = self._root
        for character in prefix:
            node = node.children.get(character)
            if node is None:
                return None
        return node

    def get(self, key, default=None):
        """Return the value of ``key``, or ``default`` if it is not in the tree."""
        node = self._find(key)
        if node is None or not node.is_key:
            return default
        return node.value

    def keys_with_prefix(self, prefix="", limit=None):
        """Return the keys that start with ``prefix`` in alphabetical order, at most
        ``limit`` of them.
        """
        start = self._find(prefix)
        if start is None:
            return []
        keys = []
        stack = [(prefix, start)]
        while stack and (limit is None or len(keys) < limit):
            key, node = stack.pop()
            if node.is_key:
                keys.append(key)
            for character in sorted(node.children, reverse=True):
                stack.append((key + character, node.children[character]))
        return keys

    def longest_prefix(self, text):
        """Return the longest key that ``text`` starts with."""
        node = self._root
        best = ""
        for length, character in enumerate(text, start=1):
            node = node.children.get(character)
            if node is None:
                break
            if node.is_key:
                best = text[:length]
        return best

"""Compare two lists of lines."""


def common_lengths(old, new):
    """Return a table whose entry ``[i][j]`` is the length of the longest common
    subsequence of ``old[i:]`` and ``new[j:]``.
    """
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            if old[i] == new[j]:
                table[i][j] = table[i + 1][j + 1] + 1
            else:
                table[i][j] = max(table[i + 1][j], table[i][j + 1])
    return table


def diff_lines(old, new):
    """Yield pairs of a mark and a line. The mark is ``-`` for a removed line, ``+``
    for an added line and a space for a line that both lists have.
    """
    table = common_lengths(old, new)
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            yield " ", old[i]
            i += 1
            j += 1
        elif j == len(new) or (i < len(old) and table[i + 1][j] >= table[i][j + 1]):
            yield "-", old[i]
            i += 1
        else:
            yield "+", new[j]
            j += 1


def format_diff(old_text, new_text):
    """Return a readable comparison of two texts, one line for each line."""
    old = old_text.splitlines()
    new = new_text.splitlines()
    lines = [f"{mark} {line}".rstrip() for mark, line in diff_lines(old, new)]
    return "\n".join(lines)


def similarity(old, new):
    """Return a number between 0 and 1 that says how much two sequences share."""
    total = len(old) + len(new)
    if total == 0:
        return 1.0
    common = common_lengths(old, new)[0][0]
    return 2 * common / total


def closest_match(word, candidates, cutoff=0.6):
    """Return the candidate that is most similar to ``word``, or None if none of them
    is similar enough.
    """
    best = None
    best_score = cutoff
    for candidate in candidates:
        score = similarity(word, candidate)
        if score >= best_score:
            best = candidate
            best_score = score
    return best

"""The state of a pair on its device, int32 [8]: what the launches of a step tell each other.

CONTEXT = tokens in the target's cache (the anchor is token number CONTEXT), DRAFTER = tokens in the drafter's cache,
LIVE = rows of the draft that count, STEP = steps so far, STATUS = 0, or 1 after logits that were not numbers,
DRAFTED_BY = 0 nobody, 1 lookup, 2 the drafter.
"""

CONTEXT, DRAFTER, LIVE, STEP, STATUS, DRAFTED_BY = range(6)
FIELDS = 8

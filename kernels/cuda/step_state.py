"""The state of a pair on its device, int32 [8]: what the launches of a step tell each other.

CONTEXT = tokens in the target's cache (the anchor is token number CONTEXT), DRAFTER = tokens in the drafter's cache,
LIVE = rows of the draft that count, STEP = steps so far, SECOND = where the second tile of a prompt's rows starts,
STATUS = 0, or 1 after logits that were not numbers, DRAFTED_BY = 0 nobody, 1 lookup, 2 the drafter.

SECOND and CONTEXT lie 16 bytes apart, so that kernels are not compiled for either alignment.
"""

CONTEXT, DRAFTER, LIVE, STEP, SECOND, STATUS, DRAFTED_BY = range(7)
FIELDS = 8

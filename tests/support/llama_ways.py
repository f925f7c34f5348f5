"""Ways to run llama.cpp that tests ask for."""

from dataclasses import replace

from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH, DecodeMode, Flags

# nothing is rounded between two rows: for comparisons with other engines
WIDE = DecodeMode(Flags(repack=False, flash=False, keys="f32", values="f32"), tuple(range(2, MAX_WIDTH + 1)))
# the same where nothing can be taken back, so that no row is a filler
NO_FILLERS = replace(WIDE, widths=tuple(range(1, MAX_WIDTH + 1)))

"""What proposes tokens: DFlash, through torch or llama.cpp, and lookup."""

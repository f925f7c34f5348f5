"""Running a pair in another engine: commands, and files for vLLM."""

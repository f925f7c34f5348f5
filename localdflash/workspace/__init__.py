"""What is known of the code around an open file: an index of the workspace, definitions, recent edits."""

"""The code around an open file: definitions, open files, edits. Secrets and ignored files stay out."""

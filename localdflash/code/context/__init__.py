"""What is known of the code around an open file: definitions, open files, edits. Secrets and ignored files stay out."""

"""What a user is likely to change next, from what was just changed. By rules, without a model."""

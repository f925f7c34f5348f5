"""The pair that ships with the package; see MODEL_CARD.md."""

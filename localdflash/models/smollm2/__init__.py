"""The drafter of the pair `smollm2-135m`, whose target comes through pip; see MODEL_CARD.md."""

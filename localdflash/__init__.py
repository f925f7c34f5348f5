"""localdflash: a local coding assistant that drafts with DFlash and verifies with a quantized model."""

"""The language server. Installed as localdflash.lsp."""

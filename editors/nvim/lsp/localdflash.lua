-- For Neovim's own client (0.12), without this plugin's renderer:
--   vim.lsp.enable('localdflash')
--   vim.lsp.inline_completion.enable()
return {
  cmd = { 'localdflash', 'lsp' },
  root_markers = { '.git', '.hg', 'pyproject.toml', 'package.json', 'Cargo.toml', 'go.mod' },
}

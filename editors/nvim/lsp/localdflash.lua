-- For Neovim's own client (0.12), without this plugin's renderer:
--   vim.lsp.enable('localdflash')
--   vim.lsp.inline_completion.enable()
return {
  cmd = { 'localdflash', 'lsp' },
  cmd_cwd = vim.uv.os_homedir(), -- not the project: where PYTHONPATH has an empty part, Python would run its modules
  root_markers = { '.git', '.hg', 'pyproject.toml', 'package.json', 'Cargo.toml', 'go.mod' },
}

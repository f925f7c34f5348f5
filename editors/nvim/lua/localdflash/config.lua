--- The settings: what setup() may be given, and what holds without it.
local M = {}

---@class localdflash.Config
M.defaults = {
  --- The language server. More arguments go here: { 'localdflash', 'lsp', '--pair', 'ID' }.
  cmd = { 'localdflash', 'lsp' },
  --- Where completions are wanted: by filetype, '*' is every other one. b:localdflash_enabled overrides it.
  filetypes = { ['*'] = true },
  --- Files and folders that mark a project's root.
  root_markers = { '.git', '.hg', 'pyproject.toml', 'package.json', 'Cargo.toml', 'go.mod' },
  --- Milliseconds between a key and the request. The server itself waits where waiting pays.
  delay = 0,
  --- Whether suggestions hide while a completion menu is open: true, false, or a function that says when it is
  --- (for menus that are not Neovim's own).
  hide_with_menu = true,
  --- Whether a change is proposed where it may have to be made next: :help localdflash-next-edit
  next_edit = true,
  --- Keys in insert mode; they do what they did before while no suggestion is visible. false: none.
  keys = {
    accept = '<Tab>',
    accept_word = '<C-Right>',
    accept_line = '<C-End>',
    next = '<M-n>',
    previous = '<M-p>',
    dismiss = '<C-]>',
  },
}

---@type localdflash.Config
M.current = M.defaults

local KINDS = {
  cmd = { 'table' },
  filetypes = { 'table' },
  root_markers = { 'table' },
  delay = { 'number' },
  hide_with_menu = { 'boolean', 'function' },
  next_edit = { 'boolean' },
  keys = { 'table', 'boolean' },
}

--- Check what setup() was given and make it current. Raises one line that names the setting.
---@param given table
function M.set(given)
  for name, value in pairs(given) do
    local kinds = KINDS[name]
    if not kinds then
      error(('localdflash: no setting %s; see :help localdflash-settings'):format(name), 0)
    end
    if not vim.list_contains(kinds, type(value)) then
      error(('localdflash: %s must be a %s'):format(name, table.concat(kinds, ' or a ')), 0)
    end
  end
  local merged = vim.tbl_deep_extend('force', M.defaults, given)
  if given.keys == false then
    merged.keys = {}
  end
  for name in pairs(merged.keys) do
    if not M.defaults.keys[name] then
      error(('localdflash: no key %s; see :help localdflash-keys'):format(name), 0)
    end
  end
  M.current = merged
end

return M

--- Settings that setup() accepts, and their defaults.
local M = {}

---@class localdflash.Config
M.defaults = {
  --- The language server. More arguments go here: { 'localdflash', 'lsp', '--pair', 'ID' }.
  cmd = { 'localdflash', 'lsp' },
  --- Whether completions are on, by filetype; '*' means all other filetypes. b:localdflash_enabled overrides it.
  filetypes = { ['*'] = true },
  --- Files and folders that mark a project's root.
  root_markers = { '.git', '.hg', 'pyproject.toml', 'package.json', 'Cargo.toml', 'go.mod' },
  --- Milliseconds between a key and the request. The server itself also delays requests when that saves work.
  delay = 0,
  --- Whether suggestions are hidden while a completion menu is open: true, false, or a function that returns whether a
  --- menu is open (for menus of other plug-ins).
  hide_with_menu = true,
  --- Whether to propose the next edit at another position: :help localdflash-next-edit
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

--- Check the settings and make them current; raise a one-line error that names an invalid setting.
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

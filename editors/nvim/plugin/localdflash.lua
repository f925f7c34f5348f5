-- Defines the command, the highlight groups and the <Plug> maps before setup(). Starts nothing.
if vim.g.loaded_localdflash then
  return
end
vim.g.loaded_localdflash = true

if vim.fn.has('nvim-0.10') == 0 then
  vim.notify('localdflash needs Neovim 0.10 or newer', vim.log.levels.ERROR)
  return
end

vim.api.nvim_set_hl(0, 'LocaldflashSuggestion', { default = true, link = 'NonText' })
vim.api.nvim_set_hl(0, 'LocaldflashCount', { default = true, link = 'Comment' })
vim.api.nvim_set_hl(0, 'LocaldflashAdded', { default = true, link = 'DiffAdd' })
vim.api.nvim_set_hl(0, 'LocaldflashRemoved', { default = true, link = 'DiffDelete' })
vim.api.nvim_set_hl(0, 'LocaldflashAfter', { default = true, link = 'Normal' })

for name, what in pairs({
  accept = 'Accept the suggestion',
  ['accept-word'] = "Accept the suggestion's next word",
  ['accept-line'] = "Accept the suggestion's next line",
  next = 'Show the next suggestion, or ask for some',
  previous = 'Show the previous suggestion, or ask for some',
  dismiss = 'Dismiss the suggestion',
}) do
  vim.keymap.set('i', ('<Plug>(localdflash-%s)'):format(name), function()
    require('localdflash')[(name:gsub('-', '_'))]()
  end, { desc = what })
end

local commands = { 'status', 'enable', 'disable', 'toggle', 'restart' }

vim.api.nvim_create_user_command('Localdflash', function(given)
  local name = given.args == '' and 'status' or given.args
  if not vim.list_contains(commands, name) then
    local there = table.concat(commands, ', ')
    return vim.notify(('localdflash: no command %s; there are %s'):format(name, there), vim.log.levels.ERROR)
  end
  if name == 'status' then
    vim.api.nvim_echo({ { table.concat(require('localdflash.status').lines(), '\n') } }, true, {})
  else
    require('localdflash')[name]()
  end
end, {
  nargs = '?',
  desc = 'localdflash: status, or switch completions on and off',
  complete = function(begun)
    return vim.tbl_filter(function(name)
      return vim.startswith(name, begun)
    end, commands)
  end,
})

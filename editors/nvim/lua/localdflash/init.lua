--- Completions of a local model while typing. :help localdflash
local M = {}

local api = vim.api

--- Apply the settings, install the autocommands and start completing; call it once.
---@param settings localdflash.Config?
function M.setup(settings)
  require('localdflash.config').set(settings or {})
  local clients = require('localdflash.clients')
  local completion = require('localdflash.completion')
  local group = api.nvim_create_augroup('localdflash', {})
  local function on(events, callback, pattern)
    api.nvim_create_autocmd(events, { group = group, pattern = pattern, callback = callback })
  end

  on({ 'FileType', 'BufEnter', 'BufFilePost', 'BufWritePost' }, function(event)
    clients.attach(event.buf)
  end)
  on({ 'BufFilePre', 'BufDelete' }, function(event) -- a buffer without a name is "deleted" when it is written
    clients.detach(event.buf)
  end)
  on('LspAttach', function(event)
    if clients.owns(event.data.client_id) then
      require('localdflash.keys').map(event.buf)
      completion.retry() -- the user may be typing already
    end
  end)
  on({ 'TextChangedI', 'TextChangedP', 'CursorMovedI' }, completion.update)
  on({ 'CompleteChanged', 'CompleteDone', 'LspDetach' }, completion.retry)
  on('InsertEnter', function(event)
    clients.attach_typed(event.buf)
    vim.schedule(completion.update) -- the cursor may still move
  end)
  on('ModeChanged', completion.clear, 'i*:[^i]*')
  on({ 'BufLeave', 'WinLeave' }, completion.clear)
  require('localdflash.next_edit').setup(group)
  if vim.lsp.config then -- `:lsp enable localdflash` turns these completions on, not Neovim's own
    vim.lsp.config('localdflash', {
      cmd = require('localdflash.config').current.cmd,
      root_dir = function()
        if not clients.enabled then
          M.enable()
        end
      end,
    })
  end
  M.enable()
end

--- Start completing in all buffers whose filetype is enabled.
function M.enable()
  require('localdflash.clients').enable()
end

--- Stop completing and end the servers.
function M.disable()
  require('localdflash.completion').clear()
  require('localdflash.next_edit').clear()
  require('localdflash.clients').stop()
  require('localdflash.status').set({ kind = 'Inactive' })
end

function M.toggle()
  if require('localdflash.clients').enabled then
    M.disable()
  else
    M.enable()
  end
end

function M.restart()
  M.disable()
  M.enable()
end

--- Return a text for a status line: model, τ, tokens per second, suggestions shown and accepted; or the error.
---@return string
function M.status()
  return require('localdflash.status').line()
end

--- Return whether a suggestion is visible.
---@return boolean
function M.is_visible()
  return require('localdflash.ghost').visible()
end

--- Accept a part of the suggestion in a separate undo step. Return whether a suggestion was visible.
local function accept(part)
  if not M.is_visible() then
    return false
  end
  local keys = ([[<C-g>u<Cmd>lua require('localdflash.completion').accept('%s')<CR><C-g>u]]):format(part)
  api.nvim_feedkeys(api.nvim_replace_termcodes(keys, true, true, true), 'ni', false)
  return true
end

---@return boolean
function M.accept()
  return accept('all')
end

---@return boolean
function M.accept_word()
  return accept('word')
end

---@return boolean
function M.accept_line()
  return accept('line')
end

--- Show the next suggestion; if there is only one, request more from the server.
function M.next()
  require('localdflash.completion').cycle(1)
end

function M.previous()
  require('localdflash.completion').cycle(-1)
end

function M.dismiss()
  require('localdflash.completion').dismiss()
end

return M

--- The last status that the server reported, as a status line or in full.
local M = {}

---@type table
local last = { kind = 'Inactive', message = '' }

--- Return a text of the server with control characters made printable.
local function plain(text)
  return vim.fn.strtrans(tostring(text))
end

--- Return the model that answered last, or `otherwise` before the first answer.
local function model(otherwise)
  return last.model and last.model ~= '' and plain(last.model) or otherwise
end

local function number(value, format)
  return type(value) == 'number' and format:format(value) or nil
end

--- Store a reported status, and fire the autocommand `User LocaldflashStatus`.
function M.set(reported)
  last = reported
  vim.schedule(function()
    vim.api.nvim_exec_autocmds('User', { pattern = 'LocaldflashStatus', modeline = false })
    vim.cmd.redrawstatus({ bang = true })
  end)
end

--- Return why the current buffer gets no suggestions: it has no server, or the server's message; nil if it does.
local function silence()
  local clients = require('localdflash.clients')
  if not clients.enabled then
    return nil
  end
  local said = last.kind ~= 'Normal' and last.message ~= '' and last.message
  return (vim.bo.buftype == '' and clients.why_not(0)) or said or nil
end

--- Return one line: model, τ, tokens per second, suggestions shown and accepted; or the error.
---@return string
function M.line()
  local why = silence()
  if why then
    return (('localdflash: ' .. plain(why)):gsub('%%', '%%%%'))
  end
  if last.kind == 'Inactive' then
    return 'localdflash off'
  end
  local parts = {
    model('localdflash'),
    number(last.tau, 'τ %.1f') or '',
    number(last.tokensPerSecond, '%.0f tok/s') or '',
    ('%d/%d'):format(last.accepted or 0, last.shown or 0),
    last.busy and '…' or '',
  }
  local there = vim.tbl_filter(function(part)
    return part ~= ''
  end, parts)
  return (table.concat(there, ' '):gsub('%%', '%%%%'))
end

--- Return the whole status, a line for each value.
---@return string[]
function M.lines()
  local message = last.message and last.message ~= '' and ', ' .. plain(last.message) or ''
  local why_not = require('localdflash.clients').why_not(0)
  local lines = {
    'state: ' .. plain(last.kind) .. message,
    'model: ' .. model('unknown'),
    'tokens per verify step (τ): ' .. (number(last.tau, '%.2f') or 'unknown'),
    'tokens per second: ' .. (number(last.tokensPerSecond, '%.1f') or 'unknown'),
    ('suggestions: %d shown, %d accepted'):format(last.shown or 0, last.accepted or 0),
  }
  if why_not then
    table.insert(lines, 2, 'this buffer: ' .. plain(why_not))
  end
  return lines
end

return M

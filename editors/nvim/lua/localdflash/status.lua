--- What the server last said of itself: for a status line, and in full.
local M = {}

---@type table
local last = { kind = 'Inactive', message = '' }

--- A text of the server as the screen may show it.
local function plain(text)
  return vim.fn.strtrans(tostring(text))
end

--- The model that answers; before the first answer there is none.
local function model(otherwise)
  return last.model and last.model ~= '' and plain(last.model) or otherwise
end

local function number(value, format)
  return type(value) == 'number' and format:format(value) or nil
end

--- Take over what the server reports, and let status lines know (User LocaldflashStatus).
function M.set(reported)
  last = reported
  vim.schedule(function()
    vim.api.nvim_exec_autocmds('User', { pattern = 'LocaldflashStatus', modeline = false })
    vim.cmd.redrawstatus({ bang = true })
  end)
end

--- Why there is nothing to see: of a buffer that has no server though it is a file, or what the server says.
local function silence()
  local clients = require('localdflash.clients')
  if not clients.enabled then
    return nil
  end
  local said = last.kind ~= 'Normal' and last.message ~= '' and last.message
  return (vim.bo.buftype == '' and clients.why_not(0)) or said or nil
end

--- One line: the model, τ, tokens a second, suggestions shown and accepted; or what is wrong.
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

--- All of it.
---@return string[]
function M.lines()
  local message = last.message and last.message ~= '' and ', ' .. plain(last.message) or ''
  local why_not = require('localdflash.clients').why_not(0)
  local lines = {
    'state: ' .. plain(last.kind) .. message,
    'model: ' .. model('unknown'),
    'tokens a verify (τ): ' .. (number(last.tau, '%.2f') or 'unknown'),
    'tokens a second: ' .. (number(last.tokensPerSecond, '%.1f') or 'unknown'),
    ('suggestions: %d shown, %d accepted'):format(last.shown or 0, last.accepted or 0),
  }
  if why_not then
    table.insert(lines, 2, 'this buffer: ' .. plain(why_not))
  end
  return lines
end

return M

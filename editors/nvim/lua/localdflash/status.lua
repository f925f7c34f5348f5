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

--- One line: the model, τ, tokens a second, suggestions shown and accepted; or what is wrong.
---@return string
function M.line()
  if last.kind == 'Error' or last.kind == 'Warning' then
    return (('localdflash: ' .. plain(last.message or '')):gsub('%%', '%%%%'))
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
  return {
    'state: ' .. plain(last.kind) .. message,
    'model: ' .. model('unknown'),
    'tokens a verify (τ): ' .. (number(last.tau, '%.2f') or 'unknown'),
    'tokens a second: ' .. (number(last.tokensPerSecond, '%.1f') or 'unknown'),
    ('suggestions: %d shown, %d accepted'):format(last.shown or 0, last.accepted or 0),
  }
end

return M

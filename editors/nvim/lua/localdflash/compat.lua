--- Functions whose API differs between Neovim 0.10 and later versions.
local M = {}

local NEW = vim.fn.has('nvim-0.11') == 1

--- Call the method `name` of an LSP client; Neovim 0.10 does not pass the client as the first argument.
function M.call(client, name, ...)
  if NEW then
    return client[name](client, ...)
  end
  return client[name](...)
end

--- Return the byte column of an LSP column; the line's length if the column is beyond its end.
---@param line string
---@param units integer
---@param encoding string
function M.byte_column(line, units, encoding)
  if encoding == 'utf-8' then
    return math.min(units, #line)
  end
  if NEW then
    return vim.str_byteindex(line, encoding, units, false)
  end
  local found, column = pcall(vim.str_byteindex, line, units, encoding == 'utf-16')
  return found and column or #line
end

return M

--- What differs between Neovim 0.10 and later ones.
local M = {}

local NEW = vim.fn.has('nvim-0.11') == 1

--- A method of a client: client:name(...), which 0.10 calls without the client.
function M.call(client, name, ...)
  if NEW then
    return client[name](client, ...)
  end
  return client[name](...)
end

--- The byte column of an LSP column; a column beyond the line is the line's end.
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

--- The length of a text in UTF-16 units.
---@param text string
function M.utf16_length(text)
  if NEW then
    return vim.str_utfindex(text, 'utf-16')
  end
  return (select(2, vim.str_utfindex(text)))
end

return M

--- A suggestion: one or several texts for a place in a buffer, and what of them is still to be typed.
---
--- An item's text begins where its range does, and so with what was typed before the request. The place is kept by an
--- extmark: edits above move it along. A suggestion agrees as long as what stands between the place and the cursor
--- begins it, over several lines too, and what follows the cursor is what followed it at first. A range may go on behind
--- the cursor: what the text closes again is replaced once all of it is accepted.
local compat = require('localdflash.compat')

local api = vim.api
local NAMESPACE = api.nvim_create_namespace('localdflash.place')

---@class localdflash.Item
---@field raw table the server's item
---@field text string with line ends as buffers have them
---@field closed integer bytes behind the cursor that its text has again

---@class localdflash.Suggestion
---@field buf integer
---@field client vim.lsp.Client
---@field items localdflash.Item[]
---@field index integer
---@field invoked boolean whether all the server has were asked for
---@field announced table<any, true> ids that the server knows to be shown
---@field private place integer
---@field private after string
local Suggestion = {}
Suggestion.__index = Suggestion

--- The row and byte column of the cursor, from 0.
local function cursor()
  local place = api.nvim_win_get_cursor(0)
  return place[1] - 1, place[2]
end

--- The byte column where an item begins, and the bytes behind the cursor that it replaces; nil for one elsewhere.
local function extent(raw, row, column, line, encoding)
  local range = raw.range
  if not range then
    return column, 0
  end
  local from, to = range.start, range['end']
  local last = compat.byte_column(line, to.character, encoding)
  if from.line ~= row or to.line ~= row or last < column then
    return nil, 0
  end
  return compat.byte_column(line, from.character, encoding), last - column
end

--- A suggestion at the cursor, from the items of an answer; nil where none of them adds anything.
---@return localdflash.Suggestion?
function Suggestion.new(client, buf, items, invoked)
  local row, column = cursor()
  local line = api.nvim_buf_get_lines(buf, row, row + 1, false)[1] or ''
  local start, kept = nil, {}
  for _, raw in ipairs(items) do
    local from, closed = nil, 0
    if type(raw.insertText) == 'string' then
      from, closed = extent(raw, row, column, line, client.offset_encoding)
    end
    if from and (start or from) == from then
      local text = raw.insertText:gsub('\r\n?', '\n')
      local typed = line:sub(from + 1, column)
      if vim.startswith(text, typed) and #text > #typed then
        start = from
        table.insert(kept, { raw = raw, text = text, closed = closed })
      end
    end
  end
  if not start then
    return nil
  end
  return setmetatable({
    buf = buf,
    client = client,
    items = kept,
    index = 1,
    invoked = invoked,
    announced = {},
    place = api.nvim_buf_set_extmark(buf, NAMESPACE, row, start, { right_gravity = false }),
    after = line:sub(column + 1),
  }, Suggestion)
end

--- What stands between the place and the cursor; nil where the suggestion cannot be meant any more.
function Suggestion:typed()
  local place = api.nvim_buf_get_extmark_by_id(self.buf, NAMESPACE, self.place, {})
  local row, column = cursor()
  if not place[1] or row < place[1] or (row == place[1] and column < place[2]) then
    return nil
  end
  local line = api.nvim_buf_get_lines(self.buf, row, row + 1, false)[1]
  if line:sub(column + 1) ~= self.after then
    return nil
  end
  return table.concat(api.nvim_buf_get_text(self.buf, place[1], place[2], row, column, {}), '\n')
end

--- What is left of the current item; nil where it does not agree or nothing is left.
function Suggestion:rest()
  local typed, text = self:typed(), self:item().text
  if typed and #text > #typed and vim.startswith(text, typed) then
    return text:sub(#typed + 1)
  end
end

--- Forget the items that do not agree with what was typed. Whether the current one is still there.
function Suggestion:follow()
  local typed, current = self:typed(), self:item()
  local kept = vim.tbl_filter(function(item)
    return typed ~= nil and #item.text > #typed and vim.startswith(item.text, typed)
  end, self.items)
  for index, item in ipairs(kept) do
    if item == current then
      self.items, self.index = kept, index
      return true
    end
  end
  return false
end

---@return localdflash.Item
function Suggestion:item()
  return self.items[self.index]
end

--- Show the item that is `step` after the one with this text.
function Suggestion:turn(text, step)
  for index, item in ipairs(self.items) do
    if item.text == text then
      self.index = (index - 1 + step) % #self.items + 1
      return
    end
  end
end

--- UTF-16 units of the item's own text up to the cursor and `piece`.
function Suggestion:length_with(piece)
  local accepted = (self:typed() or '') .. piece
  local length = compat.utf16_length(accepted)
  if self:item().raw.insertText:find('\r\n', 1, true) then
    length = length + select(2, accepted:gsub('\n', ''))
  end
  return length
end

--- What tells one item from another: the argument of its command.
function Suggestion:id()
  local command = self:item().raw.command
  return command and command.arguments and command.arguments[1]
end

function Suggestion:drop()
  if api.nvim_buf_is_valid(self.buf) then
    api.nvim_buf_del_extmark(self.buf, NAMESPACE, self.place)
  end
end

return Suggestion

--- Suggestion: one or several texts (items) for a position in a buffer, and the part that is still to be typed.
---
--- An item's text begins at the start of its range, so it includes text typed before the request. An extmark at that
--- start (`place`) follows edits above it. An item agrees while it begins with the text between `place` and the cursor,
--- and the rest of the cursor's line is unchanged. A range may extend behind the cursor, over closing brackets that the
--- item's text contains too (`closed`); they are replaced once the whole item is accepted.
local compat = require('localdflash.compat')

local api = vim.api
local NAMESPACE = api.nvim_create_namespace('localdflash.place')

---@class localdflash.Item
---@field raw table the server's item
---@field text string with line ends as buffers have them
---@field closed integer bytes behind the cursor that `text` contains too

---@class localdflash.Suggestion
---@field buf integer
---@field client vim.lsp.Client
---@field items localdflash.Item[]
---@field index integer
---@field invoked boolean whether the user requested the suggestion by a key
---@field announced table<any, true> ids that were reported to the server as shown
---@field private place integer
---@field private after string
local Suggestion = {}
Suggestion.__index = Suggestion

--- Return the row and byte column of the cursor, from 0.
local function cursor()
  local place = api.nvim_win_get_cursor(0)
  return place[1] - 1, place[2]
end

--- Return an item's first byte column, and the bytes behind the cursor that it replaces; nil, 0 if it is elsewhere.
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

--- Create a suggestion at the cursor from the items of an answer; nil if no item adds text.
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

--- Return the text from `place` to the cursor; nil if the cursor is before it or the text behind the cursor changed.
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

--- Return the current item's text behind the cursor; nil if the item does not agree or nothing is left.
function Suggestion:remaining_text()
  local typed, text = self:typed(), self:item().text
  if typed and #text > #typed and vim.startswith(text, typed) then
    return text:sub(#typed + 1)
  end
end

--- If the current item agrees with the typed text, drop the items that do not and return true; else return false.
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

--- Select the item `step` positions after the item with this text; do nothing if no item has it.
function Suggestion:select_item(text, step)
  for index, item in ipairs(self.items) do
    if item.text == text then
      self.index = (index - 1 + step) % #self.items + 1
      return
    end
  end
end

--- Return the server's id of the current item, the argument of its command; nil without a command.
function Suggestion:id()
  local command = self:item().raw.command
  return command and command.arguments and command.arguments[1]
end

--- Delete the suggestion's extmark.
function Suggestion:drop()
  if api.nvim_buf_is_valid(self.buf) then
    api.nvim_buf_del_extmark(self.buf, NAMESPACE, self.place)
  end
end

return Suggestion

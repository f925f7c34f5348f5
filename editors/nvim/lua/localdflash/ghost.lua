--- The suggestion on the screen: virtual text at the cursor, virtual lines below it.
local M = {}

local api = vim.api
local NAMESPACE = api.nvim_create_namespace('localdflash')
local SCROLLS = vim.fn.has('nvim-0.11') == 1

---@type integer? the buffer that has a ghost text
local shown

--- Called after the ghost text was shown or hidden.
M.on_change = function() end

--- Return a text that begins at a screen column with its tabs expanded to spaces.
local function expanded(text, column, tabstop)
  if not text:find('\t', 1, true) then
    return text
  end
  local parts = {}
  for word, tab in text:gmatch('([^\t]*)(\t?)') do
    column = column + api.nvim_strwidth(word)
    parts[#parts + 1] = word
    if tab ~= '' then
      local width = tabstop - column % tabstop
      parts[#parts + 1] = (' '):rep(width)
      column = column + width
    end
  end
  return table.concat(parts)
end

--- Scroll so that `count` virtual lines below the cursor are visible; the cursor's line stays on the screen.
local function make_room(row, count)
  local info = vim.fn.getwininfo(api.nvim_get_current_win())[1]
  local room = info.height - info.winbar - count
  local top = math.max(info.topline - 1, row - info.height)
  local last = math.max(row - vim.wo.scrolloff, top)
  while top < last and api.nvim_win_text_height(0, { start_row = top, end_row = row }).all > room do
    top = top + 1
  end
  if top >= info.topline then
    vim.fn.winrestview({ topline = top + 1 })
  end
end

--- Show `text` at the cursor, which is in `buf`; replaces the ghost text shown before.
---@param buf integer
---@param text string
---@param closed integer bytes after the cursor that `text` contains too
---@param count string? label such as the suggestion's number of all
function M.show(buf, text, closed, count)
  M.hide()
  local cursor = api.nvim_win_get_cursor(0)
  local row, column = cursor[1] - 1, cursor[2]
  local after = api.nvim_get_current_line():sub(column + 1)
  local tabstop = vim.bo[buf].tabstop
  local lines = vim.split(text, '\n', { plain = true })
  local first = expanded(table.remove(lines, 1), vim.fn.virtcol('.') - 1, tabstop)
  local below = vim.tbl_map(function(line)
    return { { expanded(line, 0, tabstop), 'LocaldflashSuggestion' } }
  end, lines)
  local head = { { first, 'LocaldflashSuggestion' } }
  -- Draw the line as after acceptance: text after the cursor moves to the last line's end, without `closed` bytes.
  local moves = closed > 0 or (#below > 0 and after:find('%S') ~= nil)
  if moves then
    local width = api.nvim_strwidth(expanded(after, vim.fn.virtcol('.') - 1, tabstop))
    head[2] = { (' '):rep(width - api.nvim_strwidth(first)), 'LocaldflashAfter' }
    table.insert(below[#below] or head, { after:sub(closed + 1), 'LocaldflashAfter' })
  end
  if count then
    table.insert(below[#below] or head, { count, 'LocaldflashCount' })
  end
  api.nvim_buf_set_extmark(buf, NAMESPACE, row, column, {
    virt_text = head,
    virt_text_pos = moves and 'overlay' or 'inline',
    virt_lines = #below > 0 and below or nil,
    virt_lines_overflow = SCROLLS and not vim.wo.wrap and 'scroll' or nil,
    hl_mode = moves and 'replace' or 'combine',
  })
  shown = buf
  if #below > 0 then
    make_room(row, #below)
  end
  M.on_change()
end

function M.hide()
  if shown and api.nvim_buf_is_valid(shown) then
    api.nvim_buf_clear_namespace(shown, NAMESPACE, 0, -1)
  end
  shown = nil
  M.on_change()
end

---@return boolean
function M.visible()
  return shown ~= nil
end

return M

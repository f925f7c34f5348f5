--- Next edit: a change that the server proposes at another position in the buffer, drawn at that position.
---
--- It is for one version of the text; any change removes it. It is visible in normal and insert mode while no
--- suggestion or menu is visible, and its keys are mapped only then. One key moves the cursor there, then accepts it.
local clients = require('localdflash.clients')
local compat = require('localdflash.compat')
local config = require('localdflash.config')
local ghost = require('localdflash.ghost')

local api = vim.api
local M = {}

local NAMESPACE = api.nvim_create_namespace('localdflash.next_edit')

---@class localdflash.NextEdit
---@field client vim.lsp.Client
---@field buf integer
---@field version integer
---@field row integer 0-based row and byte column where the replaced text starts
---@field from integer
---@field last integer row and byte column where it ends
---@field to integer
---@field lines string[] the replacement
---@field reached? integer[] the cursor after a key moved it there; in normal mode never at the end of a line

---@type localdflash.NextEdit?
local live
---@type { buf: integer, mode: string, lhs: string, before: table? }[] our mappings, and what they were before
local mapped = {}

local function unmap()
  for _, map in ipairs(mapped) do
    if api.nvim_buf_is_valid(map.buf) then
      api.nvim_buf_call(map.buf, function()
        vim.keymap.del(map.mode, map.lhs, { buffer = map.buf })
        if map.before then
          vim.fn.mapset(map.mode, false, map.before)
        end
      end)
    end
  end
  mapped = {}
end

local function map(buf, mode, lhs, action, desc)
  local before = vim.fn.maparg(lhs, mode, false, true)
  table.insert(mapped, { buf = buf, mode = mode, lhs = lhs, before = before.buffer == 1 and before or nil })
  vim.keymap.set(mode, lhs, action, { buffer = buf, desc = 'localdflash: ' .. desc })
end

local function map_keys(buf)
  if #mapped > 0 then
    return
  end
  local keys = config.current.keys
  for mode, dismiss in pairs({ n = keys.dismiss and '<Esc>', i = keys.dismiss }) do
    if keys.accept then
      map(buf, mode, keys.accept, M.accept, 'go to the next edit, or accept it')
    end
    if dismiss then
      map(buf, mode, dismiss, M.dismiss, 'send the next edit away')
    end
  end
end

local function is_current()
  return live and api.nvim_buf_is_loaded(live.buf) and vim.lsp.util.buf_versions[live.buf] == live.version
end

local function is_cursor_at_edit()
  local cursor = api.nvim_win_get_cursor(0)
  local row, column = cursor[1] - 1, cursor[2]
  local is_after_start = row > live.row or (row == live.row and column >= live.from)
  local is_before_end = row < live.last or (row == live.last and column <= live.to)
  return (is_after_start and is_before_end) or vim.deep_equal(cursor, live.reached)
end

local function can_show()
  local mode = api.nvim_get_mode().mode
  local here = api.nvim_get_current_buf() == live.buf and (mode == 'n' or mode == 'i') and clients.of(live.buf)
  return here and not ghost.visible() and vim.fn.pumvisible() == 0 and vim.fn.reg_executing() == ''
end

local function draw()
  api.nvim_buf_clear_namespace(live.buf, NAMESPACE, 0, -1)
  api.nvim_buf_set_extmark(live.buf, NAMESPACE, live.row, live.from, {
    end_row = live.last,
    end_col = live.to,
    hl_group = 'LocaldflashRemoved',
  })
  local added = vim.tbl_map(function(line)
    return { { line, 'LocaldflashAdded' } }
  end, live.lines)
  if #added > 1 or live.lines[1] ~= '' then
    api.nvim_buf_set_extmark(live.buf, NAMESPACE, live.last, live.to, {
      virt_text = added[1],
      virt_text_pos = 'inline',
      virt_lines = vim.list_slice(added, 2),
    })
  end
  if live.row + 1 < vim.fn.line('w0') or live.row + 1 > vim.fn.line('w$') then
    local where = ('  next edit: line %d'):format(live.row + 1)
    api.nvim_buf_set_extmark(live.buf, NAMESPACE, api.nvim_win_get_cursor(0)[1] - 1, 0, {
      virt_text = { { where, 'LocaldflashCount' } },
      virt_text_pos = 'eol',
    })
  end
end

local function hide()
  unmap()
  if live and api.nvim_buf_is_valid(live.buf) then
    api.nvim_buf_clear_namespace(live.buf, NAMESPACE, 0, -1)
  end
end

--- Remove the next edit.
function M.clear()
  hide()
  live = nil
end

--- Draw the next edit and map its keys if it may be visible now; otherwise hide it, or remove it if it is outdated.
function M.update()
  if not live then
    return
  end
  if not is_current() then
    return M.clear()
  end
  if not can_show() then
    return hide()
  end
  draw()
  map_keys(live.buf)
end

local is_scheduled = false

--- Call `update` once after the current event.
function M.update_soon()
  if is_scheduled then
    return
  end
  is_scheduled = true
  vim.schedule(function()
    is_scheduled = false
    M.update()
  end)
end

--- Return the attached buffer with this URI, or nil. (vim.uri_to_bufnr would create one for an unnamed buffer's URI.)
---@return integer?
local function find_buffer(client, uri)
  for buf in pairs(client.attached_buffers) do
    if api.nvim_buf_is_loaded(buf) and vim.uri_from_bufnr(buf) == uri then
      return buf
    end
  end
end

--- Store and show a next edit from the server.
function M.receive(client, result)
  M.clear()
  local buf = find_buffer(client, result.textDocument.uri)
  local range = result.edit.range
  if not buf then
    return
  end
  local function byte_column(place)
    local line = api.nvim_buf_get_lines(buf, place.line, place.line + 1, false)[1] or ''
    return compat.byte_column(line, place.character, client.offset_encoding)
  end
  live = {
    client = client,
    buf = buf,
    version = result.textDocument.version,
    row = range.start.line,
    from = byte_column(range.start),
    last = range['end'].line,
    to = byte_column(range['end']),
    lines = vim.split(result.edit.newText, '\r?\n'),
  }
  M.update()
end

--- Return whether a next edit is visible.
---@return boolean
function M.is_visible()
  return is_current() and can_show() and true or false
end

--- Apply the edit to the buffer and move the cursor to its end.
function M.apply()
  if not is_current() then
    return M.clear()
  end
  local edit = live
  M.clear()
  api.nvim_buf_set_text(edit.buf, edit.row, edit.from, edit.last, edit.to, edit.lines)
  local count = #edit.lines
  api.nvim_win_set_cursor(0, { edit.row + count, (count == 1 and edit.from or 0) + #edit.lines[count] })
end

--- Move the cursor to the next edit, or accept it in a separate undo step if the cursor is there. Return false without
--- a visible next edit.
---@return boolean
function M.accept()
  if not M.is_visible() then
    return false
  end
  if not is_cursor_at_edit() then
    vim.cmd("normal! m'")
    api.nvim_win_set_cursor(0, { live.row + 1, live.from })
    live.reached = api.nvim_win_get_cursor(0)
    M.update()
    return true
  end
  if api.nvim_get_mode().mode == 'n' then
    M.apply()
    return true
  end
  local keys = "<C-g>u<Cmd>lua require('localdflash.next_edit').apply()<CR><C-g>u"
  api.nvim_feedkeys(api.nvim_replace_termcodes(keys, true, true, true), 'ni', false)
  return true
end

--- Dismiss the next edit, and tell the server not to propose it and the edits after it again.
function M.dismiss()
  if live then
    local document = { uri = vim.uri_from_bufnr(live.buf) }
    compat.call(live.client, 'notify', 'localdflash/didRejectNextEdit', { textDocument = document })
  end
  M.clear()
end

--- Install the autocommands; setup() calls this once.
function M.setup(group)
  ghost.on_change = M.update_soon
  api.nvim_create_autocmd({
    'TextChanged',
    'TextChangedI',
    'TextChangedP',
    'CursorMoved',
    'CursorMovedI',
    'ModeChanged',
    'BufEnter',
    'WinScrolled',
    'CompleteChanged',
    'CompleteDone',
    'LspDetach',
  }, { group = group, callback = M.update_soon })
end

return M

--- The next edit: a change that the server proposes somewhere else in the buffer, drawn at its place.
---
--- It holds for one version of the text and goes with the first change. It is visible in normal and insert mode while no
--- suggestion and no menu is; its keys are mapped just as long. One key goes there and, there, accepts.
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
---@field row integer from 0, as all of these
---@field from integer byte column
---@field to integer
---@field text string

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

local function is_at_place()
  local cursor = api.nvim_win_get_cursor(0)
  return cursor[1] - 1 == live.row and cursor[2] >= live.from and cursor[2] <= live.to
end

local function can_show()
  local mode = api.nvim_get_mode().mode
  local here = api.nvim_get_current_buf() == live.buf and (mode == 'n' or mode == 'i') and clients.of(live.buf)
  return here and not ghost.visible() and vim.fn.pumvisible() == 0 and vim.fn.reg_executing() == ''
end

local function draw()
  api.nvim_buf_clear_namespace(live.buf, NAMESPACE, 0, -1)
  api.nvim_buf_set_extmark(live.buf, NAMESPACE, live.row, live.from, {
    end_col = live.to,
    hl_group = 'LocaldflashRemoved',
  })
  if live.text ~= '' then
    api.nvim_buf_set_extmark(live.buf, NAMESPACE, live.row, live.to, {
      virt_text = { { live.text, 'LocaldflashAdded' } },
      virt_text_pos = 'inline',
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

--- No next edit, until the server has another.
function M.clear()
  hide()
  live = nil
end

--- Show what is there where it may be shown, and nothing anywhere else.
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

local waits = false

--- The same, once what happens now is over.
function M.update_soon()
  if waits then
    return
  end
  waits = true
  vim.schedule(function()
    waits = false
    M.update()
  end)
end

--- What the server proposes, for one version of one buffer.
function M.receive(client, result)
  M.clear()
  local buf = vim.uri_to_bufnr(result.textDocument.uri)
  local range = result.edit.range
  if not api.nvim_buf_is_loaded(buf) or range.start.line ~= range['end'].line then
    return
  end
  local line = api.nvim_buf_get_lines(buf, range.start.line, range.start.line + 1, false)[1] or ''
  live = {
    client = client,
    buf = buf,
    version = result.textDocument.version,
    row = range.start.line,
    from = compat.byte_column(line, range.start.character, client.offset_encoding),
    to = compat.byte_column(line, range['end'].character, client.offset_encoding),
    text = result.edit.newText,
  }
  M.update()
end

--- Whether a next edit is drawn.
---@return boolean
function M.is_visible()
  return is_current() and can_show() and true or false
end

--- Put the edit into the buffer; the cursor stays behind it.
function M.apply()
  if not is_current() then
    return M.clear()
  end
  local edit = live
  M.clear()
  api.nvim_buf_set_text(edit.buf, edit.row, edit.from, edit.row, edit.to, { edit.text })
  api.nvim_win_set_cursor(0, { edit.row + 1, edit.from + #edit.text })
end

--- Go where the next edit is; once there, accept it, in an undo step of its own. Whether there was one.
---@return boolean
function M.accept()
  if not M.is_visible() then
    return false
  end
  if not is_at_place() then
    vim.cmd("normal! m'")
    api.nvim_win_set_cursor(0, { live.row + 1, live.from })
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

--- Send the next edit away: neither it nor the ones that would follow come again.
function M.dismiss()
  if live then
    local document = { uri = vim.uri_from_bufnr(live.buf) }
    compat.call(live.client, 'notify', 'localdflash/didRejectNextEdit', { textDocument = document })
  end
  M.clear()
end

--- Follow what happens in the editor. Once, from setup().
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
  }, { group = group, callback = M.update_soon })
end

return M

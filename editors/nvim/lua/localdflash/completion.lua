--- Request completions while the user types, show them as ghost text, and accept them. At most one is active.
---
--- After each key, a suggestion that agrees with the typed text stays, any other is removed. Then the plug-in sends a
--- request for this change and cursor position; answers to older requests are dropped. A visible suggestion that agrees
--- is replaced only by a longer text that begins with it, so it never flickers.
local clients = require('localdflash.clients')
local compat = require('localdflash.compat')
local config = require('localdflash.config')
local ghost = require('localdflash.ghost')
local Suggestion = require('localdflash.suggestion')

local api = vim.api
local M = {}

local METHOD = 'textDocument/inlineCompletion'
local INVOKED, AUTOMATIC = 1, 2

---@type localdflash.Suggestion?
local live
---@type { buf: integer, tick: integer, row: integer, column: integer }? where the last change was seen
local seen
---@type { client: vim.lsp.Client, id: integer? }? the newest request, until its answer arrives
local pending
---@type table? position at which the user dismissed a suggestion
local refused
---@type uv.uv_timer_t?
local timer

local function place()
  local cursor, buf = api.nvim_win_get_cursor(0), api.nvim_get_current_buf()
  return { buf = buf, tick = api.nvim_buf_get_changedtick(buf), row = cursor[1], column = cursor[2] }
end

local function is_typing()
  return vim.startswith(api.nvim_get_mode().mode, 'i') and vim.fn.reg_executing() == ''
end

local function menu_hides()
  local setting = config.current.hide_with_menu
  if type(setting) == 'function' then
    return setting()
  end
  return setting and vim.fn.pumvisible() == 1
end

local function render()
  local rest = live:remaining_text()
  if menu_hides() or not rest then
    return ghost.hide()
  end
  ghost.show(live.buf, rest, live:item().closed, #live.items > 1 and (' (%d/%d)'):format(live.index, #live.items) or nil)
  local id = live:id()
  if id ~= nil and not live.announced[id] then
    live.announced[id] = true
    compat.call(live.client, 'notify', 'textDocument/didShowCompletion', { item = live:item().raw })
  end
end

--- Replace the active suggestion by this one and show it.
local function put(suggestion)
  if live then
    suggestion.announced = live.announced
    live:drop()
  end
  live = suggestion
  render()
end

local function stop_asking()
  if timer then
    timer:stop()
    timer:close()
    timer = nil
  end
  if pending and pending.id then
    compat.call(pending.client, 'cancel_request', pending.id)
  end
  pending = nil
end

local function forget()
  ghost.hide()
  if live then
    live:drop()
    live = nil
  end
end

local function reject()
  if ghost.visible() then
    compat.call(live.client, 'notify', 'localdflash/didRejectCompletion', { item = live:item().raw })
  end
  forget()
end

--- Show the items of an answer or a push, unless the visible suggestion is as good.
local function receive(client, buf, items, kind, step)
  local fresh = Suggestion.new(client, buf, items, kind == INVOKED)
  if not fresh then
    return
  end
  local rest = live and live:remaining_text()
  if rest and kind == INVOKED then
    fresh:select_item(fresh:typed() .. rest, step)
  elseif rest and (fresh:remaining_text() == rest or not vim.startswith(fresh:remaining_text(), rest)) then
    return fresh:drop()
  end
  put(fresh)
end

local function ask(kind, step)
  timer = nil
  local asked = place()
  local client = clients.of(asked.buf)
  if not client or not is_typing() then
    return
  end
  local position = vim.lsp.util.make_position_params(0, client.offset_encoding)
  local params = vim.tbl_extend('error', position, { context = { triggerKind = kind } })
  local request = { client = client }
  pending = request
  local _, id = compat.call(client, 'request', METHOD, params, function(err, result)
    if pending ~= request then
      return
    end
    pending = nil
    if not err and result and is_typing() and vim.deep_equal(asked, place()) then
      receive(client, asked.buf, result.items or result, kind, step)
    end
  end, asked.buf)
  request.id = id
end

--- Update the suggestion after a possible change of text, cursor, mode or menu, and request a new one.
function M.update()
  local now = place()
  if not is_typing() or not clients.of(now.buf) then
    return M.clear()
  end
  if vim.deep_equal(now, seen) then
    return
  end
  seen = now
  if live and (live.buf ~= now.buf or not live:follow()) then
    reject()
  end
  if live then
    render()
  end
  if menu_hides() then
    return stop_asking()
  end
  if config.current.delay == 0 then
    return ask(AUTOMATIC)
  end
  stop_asking()
  timer = vim.defer_fn(function()
    ask(AUTOMATIC)
  end, config.current.delay)
end

--- Update although nothing was typed: a menu opened or closed, or a server was attached or detached.
function M.retry()
  seen = nil
  vim.schedule(M.update)
end

--- Remove the suggestion and cancel the request until the next key.
function M.clear()
  stop_asking()
  forget()
  seen = nil
end

--- Show a longer text that the server pushed; ignore it if version or position has changed.
function M.grow(client, update)
  local buf = api.nvim_get_current_buf()
  local position = vim.lsp.util.make_position_params(0, client.offset_encoding).position
  local current = vim.uri_from_bufnr(buf) == update.textDocument.uri
    and vim.lsp.util.buf_versions[buf] == update.textDocument.version
    and vim.deep_equal(position, update.position)
  if not current or not is_typing() or not seen then
    return
  end
  if (live and live.invoked) or vim.deep_equal(place(), refused) then
    return -- the user is browsing several suggestions, or dismissed the one here
  end
  receive(client, buf, update.items, AUTOMATIC)
end

--- Show the suggestion `step` positions further; request several suggestions if there is only one.
function M.cycle(step)
  if live and live.invoked then
    live.index = (live.index - 1 + step) % #live.items + 1
    return render()
  end
  stop_asking()
  ask(INVOKED, step)
end

function M.dismiss()
  refused = place()
  reject()
  stop_asking()
end

local CUTS = {
  word = [[^\_s*\%(\k\+\|\%(\k\@!\S\)\+\)]],
  line = [[^\n*[^\n]*]],
}

--- Insert a text at the cursor as a paste, which `.` repeats. Neovim's own handler would draw in between.
local function insert(text)
  local handler = vim.paste
  vim.paste = function(lines)
    api.nvim_put(lines, 'c', false, true)
    return true
  end
  local done, why = pcall(api.nvim_paste, text, false, -1)
  vim.paste = handler
  assert(done, why)
end

--- Insert a part of the suggestion into the buffer: 'all', 'word' or 'line'.
---@param part string
function M.accept(part)
  local rest = live and ghost.visible() and live:remaining_text()
  if not rest then
    return
  end
  local piece = part == 'all' and rest or vim.fn.matchstr(rest, CUTS[part])
  piece = piece == '' and rest or piece
  if piece == rest and live:item().closed > 0 then
    local row, column = unpack(api.nvim_win_get_cursor(0))
    api.nvim_buf_set_text(live.buf, row - 1, column, row - 1, column + live:item().closed, {})
  end
  insert(piece)
  local client, item = live.client, live:item().raw
  if piece ~= rest then
    compat.call(client, 'notify', 'textDocument/didPartiallyAcceptCompletion', { item = item })
    return render()
  end
  forget()
  if item.command then
    local command = { command = item.command.command, arguments = item.command.arguments }
    compat.call(client, 'request', 'workspace/executeCommand', command, function() end)
  end
end

return M

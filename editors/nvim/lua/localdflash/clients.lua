--- Language server processes, one per project: start them, attach buffers, and restart them when they end.
local compat = require('localdflash.compat')
local config = require('localdflash.config')
local keeper = require('localdflash.keeper')
local status = require('localdflash.status')

local api = vim.api
local M = {}

local NAME = 'localdflash'
local MAX_BUFFER_BYTES = 4 * 1024 * 1024 -- larger buffers are not sent to a server
local MIN_RESTART_MS, MAX_RESTART_MS = 250, 60000 -- delay before a server is restarted; doubles with each failure
local FAILED_START_MS = 60000 -- a server that ends before this time counts as a failed start

---@type table<integer, table<integer, string>> our clients' ids, and the filetype of each document sent to them
local ours = {}
---@type table<string, 'stopped'|'starting'> roots whose server the user stopped or is restarting (:lsp)
local held = {}
---@type integer? the only unnamed buffer with a server, since all unnamed buffers would have the same URI
local unnamed
---@type table<string, true> messages that were shown already
local said = {}
local failures = 0
local waiting = false

M.enabled = false

local function say(text, level)
  vim.notify('localdflash: ' .. text, level or vim.log.levels.WARN)
end

local function say_once(text)
  if not said[text] then
    said[text] = true
    say(text)
  end
end

--- Return why a buffer gets no completions: not a file, filetype disabled, or too large; nil if it gets them.
---@return string?
function M.why_not(buf)
  local name = api.nvim_buf_get_name(buf)
  if not api.nvim_buf_is_loaded(buf) or vim.bo[buf].buftype ~= '' or name:find('^%a[%w+.-]+://') then
    return 'not a file here'
  end
  local wanted, by = vim.b[buf].localdflash_enabled, 'off by b:localdflash_enabled'
  if wanted == nil then
    local filetype, filetypes = vim.bo[buf].filetype, config.current.filetypes
    wanted, by = filetypes[filetype], ('off for %s files'):format(filetype)
    if wanted == nil then
      wanted = filetypes['*']
    end
    if wanted and api.nvim_buf_get_offset(buf, api.nvim_buf_line_count(buf)) > MAX_BUFFER_BYTES then
      wanted, by = false, 'larger than 4 MB'
    end
  end
  return not wanted and by or nil
end

--- Return our initialized client to which a buffer is attached, or nil.
---@return vim.lsp.Client?
local function attached(buf)
  for id in pairs(ours) do
    local client = vim.lsp.get_client_by_id(id)
    if client and client.initialized and client.attached_buffers[buf] then
      return client
    end
  end
end

--- Return our initialized client of a buffer; nil without one, or if completions are off for the buffer.
---@return vim.lsp.Client?
function M.of(buf)
  local client = attached(buf)
  return client and not M.why_not(buf) and client or nil
end

--- Return whether the client with this id is one of ours.
function M.owns(id)
  return ours[id] ~= nil
end

--- Handle a server that the user stopped; when no other server runs, disable completions.
local function ended_by_user(root)
  if held[root] == 'stopped' and next(ours) == nil then
    M.enabled = false
    status.set({ kind = 'Inactive' })
  end
end

local function ended(client)
  ours[client.id] = nil
  if vim.v.exiting ~= vim.NIL then
    return
  end
  require('localdflash.completion').clear()
  require('localdflash.next_edit').clear()
  local server, root = client.rpc, client.config.root_dir or ''
  if server.asked_to_end then
    return ended_by_user(root)
  end
  held[root] = nil
  status.set({ kind = 'Error', message = 'the server ended' })
  failures = vim.uv.now() - server.began > FAILED_START_MS and 1 or failures + 1
  if failures == 1 then
    local why = server.signal ~= 0 and 'signal ' .. server.signal or 'exit code ' .. server.code
    say(('the server ended (%s) and is started again; :checkhealth localdflash says more'):format(why))
  end
  waiting = true
  vim.defer_fn(function()
    waiting = false
    M.attach_all()
  end, math.min(MIN_RESTART_MS * 2 ^ (failures - 1), MAX_RESTART_MS))
end

local HANDLERS = {
  didChangeStatus = function(_, result)
    status.set(result)
  end,
  ['localdflash/didUpdateInlineCompletion'] = function(_, result, context)
    local client = vim.lsp.get_client_by_id(context.client_id)
    if client then
      require('localdflash.completion').grow(client, result)
    end
  end,
  ['localdflash/didUpdateNextEdit'] = function(_, result, context)
    local client = vim.lsp.get_client_by_id(context.client_id)
    if client then
      require('localdflash.next_edit').receive(client, result)
    end
  end,
}

--- Start a server; add to its RPC object the start time `began`, `code` and `signal`, and `asked_to_end`.
local function start(root, dispatchers)
  local server
  local on_exit = dispatchers.on_exit
  -- Report a normal exit to Neovim, which would print a message for each failure; ours is printed once.
  dispatchers.on_exit = function(code, signal)
    server.code, server.signal = code, signal
    on_exit(0, 0)
  end
  -- Not in the project's folder: with an empty entry in PYTHONPATH, Python would import modules from there.
  server = vim.lsp.rpc.start(config.current.cmd, dispatchers, { cwd = vim.uv.os_homedir() })
  server.began = vim.uv.now()
  if held[root] then
    held[root] = 'starting' -- by :lsp restart
  end
  local function asked_to_end()
    if not server.asked_to_end then
      server.asked_to_end, held[root] = true, 'stopped'
    end
  end
  local request, terminate = server.request, server.terminate
  server.request = function(method, ...)
    if method == 'shutdown' then
      asked_to_end()
    end
    return request(method, ...)
  end
  server.terminate = function()
    asked_to_end()
    return terminate()
  end
  return server
end

local function began(client)
  ours[client.id], held[client.config.root_dir or ''] = {}, nil
  if vim.lsp.inline_completion then
    vim.lsp.inline_completion.enable(false, { client_id = client.id })
  end
  compat.call(client, 'request', 'localdflash/status', vim.empty_dict(), function(_, result)
    if result then
      status.set(result)
    end
  end)
  M.attach_all()
end

local function configuration(root)
  local capabilities = vim.lsp.protocol.make_client_capabilities()
  capabilities.textDocument.inlineCompletion = { dynamicRegistration = false }
  return {
    name = NAME,
    root_dir = root,
    capabilities = capabilities,
    init_options = { push = true, status = true, nextEdit = config.current.next_edit },
    handlers = HANDLERS,
    cmd = function(dispatchers)
      return start(root or '', dispatchers)
    end,
    on_init = began,
    on_attach = function(client, buf)
      ours[client.id][buf] = vim.bo[buf].filetype
    end,
    on_exit = function(_, _, id)
      local client = vim.lsp.get_client_by_id(id)
      vim.schedule(function()
        ended(client)
      end)
    end,
  }
end

--- Attach a buffer to its project's server, starting it if needed. Detach the buffer if completions are off for it.
--- Send the document again if its filetype has changed.
function M.attach(buf)
  local name, why_not, client = api.nvim_buf_get_name(buf), M.why_not(buf), attached(buf)
  local sent = client and ours[client.id][buf]
  if sent and (why_not or sent ~= vim.bo[buf].filetype) then
    M.detach(buf)
    client = nil
  end
  if not M.enabled or waiting or client or (name == '' and buf ~= unnamed) or why_not then
    return
  end
  local program = config.current.cmd[1]
  if vim.fn.executable(program) == 0 then
    status.set({ kind = 'Error', message = program .. ' is not installed' })
    return say_once(program .. ' is not on PATH: install it (in its clone: pip install .) or name it in setup{cmd}')
  end
  local reuse = function(client, wanted)
    local same = ours[client.id] ~= nil and client.config.root_dir == wanted.root_dir
    return same and not compat.call(client, 'is_stopped')
  end
  local root = vim.fs.root(name ~= '' and name or vim.fn.getcwd(), config.current.root_markers)
  if held[root or ''] then
    return
  end
  keeper.keep(buf)
  local id = vim.lsp.start(configuration(root), { bufnr = buf, reuse_client = reuse })
  if id then
    ours[id] = ours[id] or {}
  end
end

--- Attach the buffer in which the user types. If it is unnamed, detach the unnamed buffer that was attached before.
function M.attach_typed(buf)
  if buf ~= unnamed and api.nvim_buf_get_name(buf) == '' and vim.bo[buf].buflisted then
    if unnamed and api.nvim_buf_is_valid(unnamed) and api.nvim_buf_get_name(unnamed) == '' then
      M.detach(unnamed)
    end
    unnamed = buf
  end
  M.attach(buf)
end

function M.attach_all()
  for _, buf in ipairs(api.nvim_list_bufs()) do
    M.attach(buf)
  end
end

--- Detach a buffer from its server, which closes the document under the buffer's current name.
function M.detach(buf)
  local client = attached(buf)
  if client then
    ours[client.id][buf] = nil
    vim.lsp.buf_detach_client(buf, client.id)
  end
end

--- Enable completions in all projects, including those whose server the user stopped.
function M.enable()
  M.enabled, held = true, {}
  M.attach_all()
end

--- Disable completions and stop our servers.
function M.stop()
  M.enabled = false
  for id in pairs(ours) do
    local running = vim.lsp.get_client_by_id(id)
    if running then
      compat.call(running, 'stop')
    end
  end
  ours = {}
  failures, said = 0, {}
end

return M

--- The language server's processes, one for each project: started, attached to buffers, started again when they end.
local compat = require('localdflash.compat')
local config = require('localdflash.config')
local keeper = require('localdflash.keeper')
local status = require('localdflash.status')

local api = vim.api
local M = {}

local NAME = 'localdflash'
local LARGEST = 4 * 1024 * 1024 -- bytes of a buffer that is worth sending
local FIRST_WAIT, LONGEST_WAIT = 250, 60000 -- milliseconds before a server is started again
local LIVED = 60000 -- milliseconds after which a server's end is no failed start

---@type table<integer, true> our clients
local ours = {}
---@type table<string, 'stopped'|'starting'> roots whose server the user stopped, or starts again (:lsp)
local held = {}
---@type integer? the one buffer without a name that has a server: they would all have the same URI
local unnamed
---@type table<string, true> what was said once
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

--- Why a buffer is not completed: no file, not of a wanted type, or too large to be sent. nil: it is.
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
    if wanted and api.nvim_buf_get_offset(buf, api.nvim_buf_line_count(buf)) > LARGEST then
      wanted, by = false, 'larger than 4 MB'
    end
  end
  return not wanted and by or nil
end

--- Our client of a buffer, once it can be asked.
---@return vim.lsp.Client?
function M.of(buf)
  for id in pairs(ours) do
    local client = vim.lsp.get_client_by_id(id)
    if client and client.initialized and client.attached_buffers[buf] then
      return client
    end
  end
end

--- Whether a client is one of ours.
function M.owns(id)
  return ours[id] ~= nil
end

--- The user ended a server: those of other projects stay, and without any completions are off.
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
  failures = vim.uv.now() - server.began > LIVED and 1 or failures + 1
  if failures == 1 then
    local why = server.signal ~= 0 and 'signal ' .. server.signal or 'exit code ' .. server.code
    say(('the server ended (%s) and is started again; :checkhealth localdflash says more'):format(why))
  end
  waiting = true
  vim.defer_fn(function()
    waiting = false
    M.attach_all()
  end, math.min(FIRST_WAIT * 2 ^ (failures - 1), LONGEST_WAIT))
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

--- Start a server. What it is returned as also says when it began, how it ended, and whether it was asked to.
local function start(root, dispatchers)
  local server
  local on_exit = dispatchers.on_exit
  -- Neovim has a message of its own for every end of a server; ours comes once.
  dispatchers.on_exit = function(code, signal)
    server.code, server.signal = code, signal
    on_exit(0, 0)
  end
  -- Not in the project: where PYTHONPATH has an empty part, Python would run modules that lie there.
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
  ours[client.id], held[client.config.root_dir or ''] = true, nil
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
    on_exit = function(_, _, id)
      local client = vim.lsp.get_client_by_id(id)
      vim.schedule(function()
        ended(client)
      end)
    end,
  }
end

--- Give a buffer a server, where one is wanted and can be had.
function M.attach(buf)
  local name = api.nvim_buf_get_name(buf)
  if not M.enabled or waiting or M.of(buf) or (name == '' and buf ~= unnamed) or M.why_not(buf) then
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
    ours[id] = true
  end
end

--- Give a buffer without a name a server, now that somebody types there; the one that had it before has none then.
function M.attach_unnamed(buf)
  if buf == unnamed or api.nvim_buf_get_name(buf) ~= '' or not vim.bo[buf].buflisted then
    return
  end
  if unnamed and api.nvim_buf_is_valid(unnamed) and api.nvim_buf_get_name(unnamed) == '' then
    M.detach(unnamed)
  end
  unnamed = buf
  M.attach(buf)
end

function M.attach_all()
  for _, buf in ipairs(api.nvim_list_bufs()) do
    M.attach(buf)
  end
end

--- Take a buffer away from its server; it is closed there under the name it has now.
function M.detach(buf)
  local client = M.of(buf)
  if client then
    vim.lsp.buf_detach_client(buf, client.id)
  end
end

--- Complete everywhere again, also where the user stopped a server.
function M.enable()
  M.enabled, held = true, {}
  M.attach_all()
end

--- End our servers.
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

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

---@type table<integer, { began: integer, stopping: boolean? }> our clients
local ours = {}
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

--- Whether completions are wanted in a buffer: a file, of a wanted type, of a size that can be sent.
local function is_wanted(buf)
  if not api.nvim_buf_is_loaded(buf) or vim.bo[buf].buftype ~= '' then
    return false
  end
  local name = api.nvim_buf_get_name(buf)
  if name == '' or name:find('^%a[%w+.-]+://') then
    return false
  end
  if vim.b[buf].localdflash_enabled ~= nil then
    return vim.b[buf].localdflash_enabled
  end
  local wanted = config.current.filetypes[vim.bo[buf].filetype]
  if wanted == nil then
    wanted = config.current.filetypes['*']
  end
  return wanted and api.nvim_buf_get_offset(buf, api.nvim_buf_line_count(buf)) <= LARGEST
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

local function ended(id, how)
  local client = ours[id]
  ours[id] = nil
  if not client or client.stopping or vim.v.exiting ~= vim.NIL then
    return
  end
  require('localdflash.completion').clear()
  status.set({ kind = 'Error', message = 'the server ended' })
  failures = vim.uv.now() - client.began > LIVED and 1 or failures + 1
  if failures == 1 then
    local why = how.signal ~= 0 and 'signal ' .. how.signal or 'exit code ' .. how.code
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

local function configuration(root)
  local how = { code = 0, signal = 0 }
  local capabilities = vim.lsp.protocol.make_client_capabilities()
  capabilities.textDocument.inlineCompletion = { dynamicRegistration = false }
  return {
    name = NAME,
    root_dir = root,
    capabilities = capabilities,
    init_options = { push = true, status = true, nextEdit = config.current.next_edit },
    handlers = HANDLERS,
    -- Neovim has a message of its own for every end of a server; ours comes once.
    cmd = function(dispatchers)
      local on_exit = dispatchers.on_exit
      dispatchers.on_exit = function(code, signal)
        how.code, how.signal = code, signal
        on_exit(0, 0)
      end
      -- Not in the project: where PYTHONPATH has an empty part, Python would run modules that lie there.
      return vim.lsp.rpc.start(config.current.cmd, dispatchers, { cwd = vim.uv.os_homedir() })
    end,
    on_init = function(client)
      if vim.lsp.inline_completion then
        vim.lsp.inline_completion.enable(false, { client_id = client.id })
      end
      compat.call(client, 'request', 'localdflash/status', vim.empty_dict(), function(_, result)
        if result then
          status.set(result)
        end
      end)
    end,
    on_exit = function(_, _, id)
      vim.schedule(function()
        ended(id, how)
      end)
    end,
  }
end

--- Give a buffer a server, where one is wanted and can be had.
function M.attach(buf)
  if not M.enabled or waiting or M.of(buf) or not is_wanted(buf) then
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
  keeper.keep(buf)
  local root = vim.fs.root(buf, config.current.root_markers)
  local id = vim.lsp.start(configuration(root), { bufnr = buf, reuse_client = reuse })
  if id then
    ours[id] = ours[id] or { began = vim.uv.now() }
  end
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

--- End our servers.
function M.stop()
  for id, client in pairs(ours) do
    client.stopping = true
    local running = vim.lsp.get_client_by_id(id)
    if running then
      compat.call(running, 'stop')
    end
  end
  ours = {}
  failures, said = 0, {}
end

return M

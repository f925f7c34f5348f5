--- :checkhealth localdflash
local M = {}

local health = vim.health

--- Return the first line that a program prints; nil if it fails.
local function first_line(command)
  local began, process = pcall(vim.system, command, { text = true })
  if not began then
    return nil
  end
  local done = process:wait(10000)
  return done.code == 0 and vim.split(vim.trim(done.stdout), '\n')[1] or nil
end

local function check_program(command)
  if vim.fn.executable(command[1]) == 0 then
    health.error(command[1] .. ' is not on PATH', { 'in its clone: pip install .', 'or name it: setup{ cmd = { ... } }' })
    return
  end
  health.ok(command[1] .. ': ' .. vim.fn.exepath(command[1]))
  if vim.fs.basename(command[1]) == 'localdflash' then
    local version = first_line({ command[1], '--version' })
    if version then
      health.ok(version)
    else
      health.error(command[1] .. ' --version fails', { 'run it in a terminal: localdflash doctor' })
    end
  end
end

local function check_servers()
  local clients = vim.tbl_filter(function(client)
    return require('localdflash.clients').owns(client.id)
  end, vim.lsp.get_clients())
  if #clients == 0 then
    health.warn('no server runs', { 'open a file and look again' })
  end
  for _, client in ipairs(clients) do
    local count = #vim.lsp.get_buffers_by_client_id(client.id)
    local root = client.config.root_dir or 'single files'
    health.ok(('server of %s, %d buffers, %s'):format(root, count, client.offset_encoding))
  end
  local all = #vim.lsp.get_clients({ name = 'localdflash' })
  if all > #clients then
    health.warn('localdflash also runs by vim.lsp.enable()', { 'use either that or setup()' })
  end
end

function M.check()
  health.start('localdflash')
  local clients = require('localdflash.clients')
  if not clients.enabled then
    health.warn('it is off', { ":Localdflash enable, or require('localdflash').setup{} was never called" })
  end
  check_program(require('localdflash.config').current.cmd)
  check_servers()
  for _, line in ipairs(require('localdflash.status').lines()) do
    health.info(line)
  end
  local log = vim.lsp.log and vim.lsp.log.get_filename and vim.lsp.log.get_filename() or vim.lsp.get_log_path()
  health.info("the server's messages: " .. log)
end

return M

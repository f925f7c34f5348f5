--- Keeps a buffer's changes coming while no server is attached to it.
---
--- Where a buffer changes without any client, Neovim (0.10 to 0.12) stops listening to it for good, and a server that
--- comes later is told of no change. A client that is attached but never gets beyond its start prevents that.
local M = {}

---@type integer?
local id

local function transport(dispatchers)
  local closed = false
  return {
    request = function()
      return true, 1 -- the answer never comes
    end,
    notify = function()
      return not closed
    end,
    is_closing = function()
      return closed
    end,
    terminate = function()
      closed = true
      dispatchers.on_exit(0, 0)
    end,
  }
end

--- Call before a server is attached to the buffer.
---@param buf integer
function M.keep(buf)
  if id and vim.lsp.get_client_by_id(id) then
    vim.lsp.buf_attach_client(buf, id)
    return
  end
  local never = function()
    return false
  end
  id = vim.lsp.start({ name = 'localdflash-keeper', cmd = transport }, { bufnr = buf, reuse_client = never })
end

return M

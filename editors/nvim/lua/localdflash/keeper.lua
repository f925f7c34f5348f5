--- Keep Neovim listening to a buffer's changes while no language server is attached to the buffer.
---
--- If a buffer changes while it has no client, Neovim (0.10 to 0.12) never listens to it again, so a server attached
--- later receives no changes. An attached client whose `initialize` request is never answered prevents that.
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

--- Attach the keeper client to a buffer; call it before a server is attached.
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

--- Keys that act on a visible suggestion, and otherwise run the mapping that they had before.
local clients = require('localdflash.clients')
local config = require('localdflash.config')

local api = vim.api
local M = {}

local MARK = 'localdflash: '
local ALWAYS = { next = true, previous = true } -- request suggestions if none is visible

local function feed(keys, mode)
  api.nvim_feedkeys(api.nvim_replace_termcodes(keys, true, true, true), mode .. 'i', false)
end

--- Return the buffer's earlier mapping of a key, else the current global mapping; nil if there is none.
local function earlier(lhs, saved)
  if saved then
    return saved
  end
  local wanted = api.nvim_replace_termcodes(lhs, true, true, true)
  for _, mapping in ipairs(api.nvim_get_keymap('i')) do
    if api.nvim_replace_termcodes(mapping.lhs, true, true, true) == wanted then
      return mapping
    end
  end
end

--- Run the earlier mapping of a key, or type the key if it had none.
local function fall_back(lhs, saved)
  local mapping = earlier(lhs, saved)
  if not mapping then
    return feed(lhs, 'n')
  end
  local rhs = mapping.rhs and mapping.rhs:gsub('<SID>', ('<SNR>%d_'):format(mapping.sid))
  if mapping.expr == 1 then
    rhs = mapping.callback and mapping.callback() or api.nvim_eval(rhs)
  elseif mapping.callback then
    return mapping.callback()
  end
  if type(rhs) ~= 'string' or rhs == '' then
    return
  end
  local mode = (mapping.noremap == 1 or rhs == lhs) and 'n' or 'm'
  if mapping.expr == 1 and mapping.replace_keycodes ~= 1 then
    return api.nvim_feedkeys(rhs, mode .. 'i', false)
  end
  feed(rhs, mode)
end

--- Map the keys of the settings in a buffer.
function M.map(buf)
  for name, lhs in pairs(config.current.keys) do
    local present = lhs and api.nvim_buf_call(buf, function()
      return vim.fn.maparg(lhs, 'i', false, true)
    end)
    if present and not vim.startswith(present.desc or '', MARK) then
      local saved = present.buffer == 1 and present or nil
      vim.keymap.set('i', lhs, function()
        local localdflash = require('localdflash')
        if localdflash.is_visible() or (ALWAYS[name] and clients.of(buf)) then
          return localdflash[name]()
        end
        fall_back(lhs, saved)
      end, { buffer = buf, desc = MARK .. name })
    end
  end
end

return M

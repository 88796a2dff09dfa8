-- What an operator sees of one session. It changes nothing. keys.lua says what the keys hold.
-- KEYS: the session. ARGV: the prefix of its keys, what is wanted, and for that: its logs to look at, and the log that is looked
-- for; or how many logs; or the log whose events are wanted, and how many bytes it may have.
local call, sub = redis.call, string.sub
local prefix, wanted = ARGV[1], ARGV[2]
local session = sub(KEYS[1], #prefix + 3)
local ikey = prefix .. 'i:' .. session
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function key(kind, nonce)
  return prefix .. kind .. ':' .. nonce .. ':' .. session
end

local s = call('HMGET', KEYS[1], 'e', 'o', 'v', 'p', 'b', 'w', 's')
if not s[1] then
  return {}
end
local nonces = call('ZRANGE', ikey, 0, -1)

-- A log is kept a little longer than its events, to be counted out.
local function is_over(f)
  return f and now >= (tonumber(f) or 0)
end

if wanted == 'session' then
  local streams, running, oldest, newest, has_log = 0, 0, false, false, 0
  for place, nonce in ipairs(nonces) do
    if place > tonumber(ARGV[3]) then
      break
    end
    local v = redis.pcall('HMGET', key('m', nonce), 'f', 'w')
    local began = not v.err and tonumber(v[2] or '')
    if began and not is_over(v[1]) then
      streams = streams + 1
      running = running + (v[1] and 0 or 1)
      oldest = oldest and math.min(oldest, began) or began
      newest = newest and math.max(newest, began) or began
      has_log = nonce == ARGV[4] and 1 or has_log
    end
  end
  local is_sealed = s[3] == '' and (call('HGET', KEYS[1], 'm') or '') ~= ''
  return {s[1], s[2] or '', s[3] or '', s[4] or '', tonumber(s[5] or 0) or 0, tonumber(s[6] or 0) or 0, is_sealed and 1 or 0,
    streams, running, oldest or -1, newest or -1, has_log}
elseif wanted == 'streams' then
  local found = {}
  for _, nonce in ipairs(nonces) do
    local v = redis.pcall('HMGET', key('m', nonce), 'h', 'l', 'f', 'T', 'c', 'b', 'n', 'w', 'i', 'a')
    local began = not v.err and tonumber(v[8] or '')
    if #found >= tonumber(ARGV[3]) then
      break
    end
    if began and not is_over(v[3]) then
      local last = redis.pcall('LINDEX', key('e', nonce), -1)
      last = type(last) == 'string' and tonumber(sub(last, -11), 16) or -1
      local number = tonumber(v[9] or '')
      found[#found + 1] = {nonce, nonce == s[7] and 1 or 0, v[10] or '', tonumber(v[1]) or 0, tonumber(v[2]) or 0,
        tonumber(v[7]) or 0, tonumber(v[6]) or 0, tonumber(v[5]) or 0, began, last, tonumber(v[3] or '') or -1,
        v[4] and #v[4] or -1, number and number > 0 and 1 or 0, number == 0 and 1 or 0}
    end
  end
  return found
end
-- frames
local nonce = ARGV[3]
local bytes = tonumber(call('HGET', key('m', nonce), 'b') or '')
if not bytes or bytes > tonumber(ARGV[4]) then
  return false
end
local low = tonumber(call('HGET', key('m', nonce), 'l')) or 1
local pinned, seqs, frames = call('HGETALL', key('p', nonce)), {}, {}
for at = 1, #pinned, 2 do
  local seq = tonumber(pinned[at])
  if seq and seq < low and pinned[at + 1] ~= '' then
    seqs[#seqs + 1] = {seq, pinned[at + 1]}
  end
end
table.sort(seqs, function(a, b) return a[1] < b[1] end)
for _, entry in ipairs(seqs) do
  frames[#frames + 1] = sub(entry[2], 10, -12)
end
for _, value in ipairs(call('LRANGE', key('e', nonce), 0, -1)) do
  frames[#frames + 1] = sub(value, 10, -12)
end
return frames

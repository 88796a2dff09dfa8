-- What callers asked of one session, in order, all at once or not at all. Every key has the session's hash tag.
--
--   <prefix>s:<session>           hash: the session. e epoch of its owner, o the owner, empty when it let go; v, p, r, l,
--                                 s its record; b bytes of its logs and messages; n number of the last message, i of
--                                 the last that was taken, w messages that wait, W their bytes. Or, of one that was
--                                 dropped and whose name stays taken, d
--   <prefix>i:<session>           sorted set: its logs. Score: until when it is kept, in microseconds, of one that
--                                 has ended; for one that runs the
--                                 time until which it is kept, in milliseconds and negative
--   <prefix>x:<session>           sorted set: its inbox, messages that wait or were taken. Score: the number. Each is the
--                                 nonce of its log, and its size. One whose log is gone goes when it is come upon
--   <prefix>m:<nonce>:<session>   hash: a log. h head, l low, t tag at l - 1, k chain, f until when it is kept, where it has
--                                 ended, T tail, a about,
--                                 r how it is paced, z for how long it is kept behind its end, where
--                                 that was said, c readers, b bytes, n events, w when the event at l was stored,
--                                 e when the expiry was set, q fields of p, o the store objects at which readers were
--                                 last; of an answer to a message i its number, negative when it was taken and 0 when it was
--                                 withdrawn, M the message
--   <prefix>e:<nonce>:<session>   list: its events from l to h. Each is kind, tag, frame, and when it was stored. (A
--                                 stream of the server's would take 4 KiB with its first entry.)
--   <prefix>p:<nonce>:<session>   hash: questions without an answer by position, empty while they are in e; and what
--                                 outlived the trimmed prefix
--   <namespace>:n:<name>          channel of a store object: logs that changed, and their session. No log stands for the
--                                 session, + for a message
--
-- KEYS: s, and for servers of a cluster what else has to be there. ARGV: prefix, the store object that asks, then for each
-- operation its letter, the number of its arguments, and these.
-- Returns: positions trimmed; logs that were trimmed or removed besides (nonce, events, bytes); an answer for each
-- operation, the first word of which is 0 or says why not; why others could not be told.
local GONE, FENCED, OUT_OF_ORDER, ROLLED_BACK, FAILED, INBOX_FULL = 1, 2, 3, 4, 5, 6
local HEADER, STAMP, NONCE = 9, 11, 24
-- So many store objects are told of a log: those at which readers were last.
local FOLLOWERS = 8
local call, sub = redis.call, string.sub
local prefix, me, skey = ARGV[1], ARGV[2], KEYS[1]
local session = sub(skey, #prefix + 3)
local ikey, xkey = prefix .. 'i:' .. session, prefix .. 'x:' .. session
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_us = clock[1] * 1000000 + clock[2]
local at, trimmed, is_over = 2, 0, false
local epoch, owner, posted, taken, waiting, waiting_bytes = unpack(call('HMGET', skey, 'e', 'o', 'n', 'i', 'w', 'W'))
-- `false` is no argument of tonumber. What somebody else wrote may be no number.
posted, taken = tonumber(posted or 0) or 0, tonumber(taken or 0) or 0
waiting, waiting_bytes = tonumber(waiting or 0) or 0, tonumber(waiting_bytes or 0) or 0
local others, told, written = {}, {}, {}

local function arg()
  at = at + 1
  return ARGV[at]
end

local function number()
  return tonumber(arg())
end

-- These store objects, names of the same length one after the other, are told that a log changed; the session, where it is
-- ''; that there is a message, where it is '+'.
local function tell(names, nonce)
  for name in string.gmatch(names or '', string.rep('.', #me)) do
    told[name] = told[name] or {}
    told[name][nonce] = true
  end
end

local stamp = string.format('%011x', now)

local function stored_at(value)
  return tonumber(sub(value, -STAMP), 16)
end

local function cost(value)
  return #value - HEADER - STAMP + EVENT_COST
end

local function named(nonce)
  local name = nonce .. ':' .. session
  return {nonce = nonce, key = prefix .. 'm:' .. name, events = prefix .. 'e:' .. name, pinned = prefix .. 'p:' .. name}
end

-- Whether these fields make a log. What somebody else wrote and is none harms nothing but itself.
local function is_log(v)
  for _, field in ipairs({1, 2, 6, 7, 8, 10}) do
    if not (v[field] and #v[field] < 16 and string.find(v[field], '^%d+$')) then
      return false
    end
  end
  return v[3] and v[4] and #v[3] == 8 and #v[4] == 16 and not string.find(v[3] .. v[4], '%X')
end

-- The log, or nothing and whether something is in its place.
local function load(nonce)
  if #nonce ~= NONCE or string.find(nonce, '%X') then
    return nil, false
  end
  local m = named(nonce)
  local v = epoch and redis.pcall('HMGET', m.key, 'h', 'l', 't', 'k', 'f', 'b', 'n', 'w', 'e', 'q', 'o', 'i', 'z') or {}
  if v.err or not is_log(v) then
    return nil, (v.err or v[1]) and true or false
  end
  m.h, m.l, m.t, m.k, m.f = tonumber(v[1]), tonumber(v[2]), v[3], v[4], tonumber(v[5] or '')
  m.b, m.n, m.w, m.e, m.q = tonumber(v[6]), tonumber(v[7]), tonumber(v[8]), tonumber(v[9] or '') or 0, tonumber(v[10])
  m.held, m.followers, m.i = m.b, v[11] or '', tonumber(v[12] or '')
  m.z = tonumber(v[13] or '')
  -- It is kept a little longer than its events, so that it can be counted out.
  if m.f and now >= m.f then
    return nil, true
  end
  return m
end

local function keep_session()
  call('PEXPIRE', skey, SESSION_MS)
  call('PEXPIRE', ikey, SESSION_MS)
  call('PEXPIRE', xkey, SESSION_MS)
end

local function count(bytes)
  is_over = call('HINCRBY', skey, 'b', bytes) > MAX_BYTES_PER_SESSION or is_over
end

-- A log that runs is kept for another while.
local function keep(m)
  m.e = now
  -- First what a server takes whose memory is full: after a write it takes the others, too.
  call('PEXPIRE', m.key, LOG_MS)
  call('HSET', m.key, 'e', now)
  call('PEXPIRE', m.events, EVENTS_MS)
  if m.q > 0 then
    call('PEXPIRE', m.pinned, EVENTS_MS)
  end
  call('ZADD', ikey, -(now + LOG_MS), m.nonce)
  keep_session()
end

local function keep_finished(m)
  local left = m.f - now
  call('PEXPIRE', m.key, left + GRACE_MS)
  call('PEXPIRE', m.events, left)
  if m.q > 0 then
    call('PEXPIRE', m.pinned, left)
  end
  call('ZADD', ikey, m.f * 1000 + now_us % 1000, m.nonce)
  keep_session()
end

local function save(m)
  call('HSET', m.key, 'h', m.h, 'l', m.l, 't', m.t, 'k', m.k, 'b', m.b, 'n', m.n, 'w', m.w, 'q', m.q)
  if m.b ~= m.held then
    count(m.b - m.held)
    m.held = m.b
  end
end


-- A log has its end, with this payload where that is not in it.
local function finish(m, tail)
  m.f = now + (m.z or RETENTION_MS)
  call('HSET', m.key, 'f', m.f)
  if tail then
    m.b = m.b + #tail
    call('HSET', m.key, 'T', tail)
  end
end

local ops = {}

-- For how long a log is kept that has ended; 0 while it runs.
local function left(m)
  return m.f and math.max(m.f - now, 1) or 0
end

-- What is held after a write.
local function state(m)
  return {0, m.n, m.b, left(m)}
end

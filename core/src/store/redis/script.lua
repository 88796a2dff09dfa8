-- What callers asked of one session, in order, all at once or not at all. Every key has the session's hash tag.
--
--   <prefix>s:<session>           hash: the session. e epoch of its owner, o the owner, empty when it let go; v, p, r, l,
--                                 s its record; b bytes of its logs
--   <prefix>i:<session>           sorted set: its logs. Score: when it ended, in microseconds; for one that runs the
--                                 time until which it is kept, in milliseconds and negative
--   <prefix>m:<nonce>:<session>   hash: a log. h head, l low, t tag at l - 1, k chain, f when it ended, T tail, a about,
--                                 r retry, c readers, b bytes, n events, w when the event at l was stored,
--                                 e when the expiry was set, q fields of p, o the store objects at which readers were last
--   <prefix>e:<nonce>:<session>   list: its events from l to h. Each is kind, tag, frame, and when it was stored. (A
--                                 stream of the server's would take 4 KiB with its first entry.)
--   <prefix>p:<nonce>:<session>   hash: questions without an answer by position, empty while they are in e; and what
--                                 outlived the trimmed prefix
--   <namespace>:n:<name>          channel of a store object: logs that changed, and their session. No log stands for the session
--
-- KEYS: s, and for servers of a cluster what else has to be there. ARGV: prefix, the store object that asks, then for each
-- operation its letter, the number of its arguments, and these.
-- Returns: positions trimmed; logs that were trimmed or removed besides (nonce, events, bytes); an answer for each
-- operation, the first word of which is 0 or says why not; why others could not be told.
local GONE, FENCED, OUT_OF_ORDER, ROLLED_BACK, FAILED = 1, 2, 3, 4, 5
local HEADER, STAMP = 9, 11
-- So many store objects are told of a log: those at which readers were last.
local FOLLOWERS = 8
local call, sub = redis.call, string.sub
local prefix, me, skey = ARGV[1], ARGV[2], KEYS[1]
local session = sub(skey, #prefix + 3)
local ikey = prefix .. 'i:' .. session
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_us = clock[1] * 1000000 + clock[2]
local at, trimmed, is_over = 2, 0, false
local epoch, owner = unpack(call('HMGET', skey, 'e', 'o'))
local others, told, written = {}, {}, {}

local function arg()
  at = at + 1
  return ARGV[at]
end

local function number()
  return tonumber(arg())
end

-- These store objects, names of the same length one after the other, are told that a log changed; the session, where it is ''.
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

local function load(nonce)
  local m = named(nonce)
  local v = epoch and call('HMGET', m.key, 'h', 'l', 't', 'k', 'f', 'b', 'n', 'w', 'e', 'q', 'o') or {}
  if not v[1] then
    return nil, false
  end
  m.h, m.l, m.t, m.k, m.f = tonumber(v[1]), tonumber(v[2]), v[3], v[4], tonumber(v[5])
  m.b, m.n, m.w, m.e, m.q = tonumber(v[6]), tonumber(v[7]), tonumber(v[8]), tonumber(v[9]), tonumber(v[10])
  m.held, m.followers = m.b, v[11] or ''
  -- It is kept a little longer than its events, so that it can be counted out.
  if m.f and now >= m.f + RETENTION_MS then
    return nil, true
  end
  return m
end

local function keep_session()
  call('PEXPIRE', skey, SESSION_MS)
  call('PEXPIRE', ikey, SESSION_MS)
end

local function count(bytes)
  is_over = call('HINCRBY', skey, 'b', bytes) > MAX_BYTES_PER_SESSION or is_over
end

-- A log that runs is kept for another while.
local function keep(m)
  m.e = now
  call('HSET', m.key, 'e', now)
  call('PEXPIRE', m.key, LOG_MS)
  call('PEXPIRE', m.events, EVENTS_MS)
  if m.q > 0 then
    call('PEXPIRE', m.pinned, EVENTS_MS)
  end
  call('ZADD', ikey, -(now + LOG_MS), m.nonce)
  keep_session()
end

local function keep_finished(m)
  call('PEXPIRE', m.key, RETENTION_MS + GRACE_MS)
  call('PEXPIRE', m.events, RETENTION_MS)
  if m.q > 0 then
    call('PEXPIRE', m.pinned, RETENTION_MS)
  end
  call('ZADD', ikey, now_us, m.nonce)
  keep_session()
end

local function save(m)
  call('HSET', m.key, 'h', m.h, 'l', m.l, 't', m.t, 'k', m.k, 'b', m.b, 'n', m.n, 'w', m.w, 'q', m.q)
  if m.b ~= m.held then
    count(m.b - m.held)
    m.held = m.b
  end
end

-- The server evicted the events: the log goes on behind them, it does not start again.
local function lost(m)
  trimmed = trimmed + m.h + 1 - m.l
  call('UNLINK', m.pinned)
  m.l, m.t, m.n, m.b, m.q = m.h + 1, sub(m.k, 9), 0, LOG_COST, 0
end

-- Moves `l` on while the log is over; then what outlived the prefix goes, oldest first. The newest event stays.
local function shrink(m, over)
  local before, step, more = m.l, 2, over(m)
  while more and m.l < m.h do
    local got = call('LRANGE', m.events, m.l - before, m.l - before + step - 1)
    if #got == 0 then
      return lost(m)
    end
    for _, value in ipairs(got) do
      m.w = stored_at(value)
      if m.l >= m.h or not over(m) then
        more = false
        break
      end
      local kind = sub(value, 1, 1)
      trimmed = trimmed + 1
      m.l, m.t = m.l + 1, sub(value, 2, HEADER)
      if kind == '3' or (kind == '2' and call('HEXISTS', m.pinned, m.l - 1) == 1) then
        m.q = m.q + call('HSET', m.pinned, m.l - 1, value)
        call('PEXPIRE', m.pinned, EVENTS_MS)
      else
        m.n, m.b = m.n - 1, m.b - cost(value)
      end
    end
    step = math.min(step * 2, 64)
  end
  if m.l > before then
    call('LTRIM', m.events, m.l - before, -1)
  end
  if m.q > 0 and m.l == m.h and over(m) then
    local seqs = {}
    for _, field in ipairs(call('HKEYS', m.pinned)) do
      seqs[#seqs + 1] = tonumber(field)
    end
    table.sort(seqs)
    for _, seq in ipairs(seqs) do
      if seq >= m.l or not over(m) then
        break
      end
      local value = call('HGET', m.pinned, seq)
      call('HDEL', m.pinned, seq)
      m.q, m.n, m.b = m.q - 1, m.n - 1, m.b - cost(value)
    end
  end
end

local function is_log_over(m)
  return m.n > MAX_EVENTS_PER_STREAM or m.b > MAX_BYTES_PER_STREAM or (m.l < m.h and m.w < now - MAX_AGE_MS)
end

-- Removes a log. Where its bytes are not known any more, those of the session are summed up again.
local function remove(nonce)
  local m = named(nonce)
  local bytes, followers = unpack(call('HMGET', m.key, 'b', 'o'))
  tell(followers, nonce)
  call('UNLINK', m.key, m.events, m.pinned)
  call('ZREM', ikey, nonce)
  others[#others + 1], others[#others + 2], others[#others + 3] = nonce, -1, 0
  if bytes then
    return count(-bytes)
  end
  local total = 0
  for _, other in ipairs(call('ZRANGE', ikey, 0, -1)) do
    total = total + (tonumber(call('HGET', named(other).key, 'b')) or 0)
  end
  call('HSET', skey, 'b', total)
end

local function forget_session()
  for _, nonce in ipairs(call('ZRANGE', ikey, 0, -1)) do
    local m = named(nonce)
    tell(call('HGET', m.key, 'o'), nonce)
    call('UNLINK', m.key, m.events, m.pinned)
  end
  call('UNLINK', skey, ikey)
  epoch, owner = false, false
end

-- Logs whose time is over leave the session, a few at a time.
local function purge()
  for first, last in pairs({['(0'] = now_us - RETENTION_MS * 1000, [-now] = '(0'}) do
    for _, nonce in ipairs(call('ZRANGEBYSCORE', ikey, first, last, 'LIMIT', 0, 16)) do
      remove(nonce)
    end
  end
end

-- The session's logs that ended first go first, then the oldest events of its largest.
local function trim_session()
  local total = tonumber(call('HGET', skey, 'b')) or 0
  if total <= MAX_BYTES_PER_SESSION then
    return
  end
  -- An eighth more than needed, so that the next events do not look through all logs again.
  local goal = MAX_BYTES_PER_SESSION - math.floor(MAX_BYTES_PER_SESSION / 8)
  for _, nonce in ipairs(call('ZRANGEBYSCORE', ikey, '(0', '+inf')) do
    if total <= goal then
      break
    end
    if not written[nonce] then
      remove(nonce)
      total = tonumber(call('HGET', skey, 'b'))
    end
  end
  while total > MAX_BYTES_PER_SESSION do
    local largest, most = nil, 0
    for _, nonce in ipairs(call('ZRANGE', ikey, 0, -1)) do
      local v = call('HMGET', named(nonce).key, 'b', 'n')
      local bytes = tonumber(v[1]) or 0
      if bytes > most and tonumber(v[2]) > 1 then
        largest, most = nonce, bytes
      end
    end
    local m = largest and load(largest)
    if not m then
      return
    end
    local held, quarter = m.b, m.b - m.b / 4
    shrink(m, function(log) return log.b > quarter or log.b == held end)
    if m.b >= held then
      return
    end
    save(m)
    others[#others + 1], others[#others + 2], others[#others + 3] = largest, m.n, m.b
    total = total - (held - m.b)
  end
end

local ops = {}

-- What is held after a write.
local function state(m)
  return {0, m.n, m.b, m.f and 1 or 0}
end

-- hold: epoch, the one that was seen; and where there is a record: revision, principal, retry, lists, standalone
function ops.H(count_of_args)
  local own, seen = arg(), arg()
  if not epoch and (seen ~= '' or count_of_args == 2) then
    return {GONE}
  elseif epoch and epoch ~= own and epoch ~= seen then
    return {FENCED}
  end
  -- The server may have evicted the session and not its logs.
  if not epoch and call('EXISTS', ikey) == 1 then
    forget_session()
  end
  if epoch ~= own then
    tell(owner, '')
  end
  call('HSET', skey, 'e', own, 'o', me)
  if count_of_args > 2 then
    call('HSET', skey, 'v', arg(), 'p', arg(), 'r', arg(), 'l', arg(), 's', arg())
  end
  epoch, owner = own, me
  keep_session()
  local running = {}
  for _, nonce in ipairs(seen ~= '' and call('ZRANGEBYSCORE', ikey, '-inf', '(0') or {}) do
    local m = load(nonce)
    if m and not m.f then
      keep(m)
      running[#running + 1] = {nonce, m.h, m.k, call('HGET', m.key, 'a'), m.n, m.b}
    end
  end
  return {0, running}
end

-- append: nonce, first, chain before, chain after, retry, = and the end, about and chain for a log that is created, values
function ops.A(count_of_args)
  local nonce, first, before, chain = arg(), number(), arg(), arg()
  local retry, tail, about, start = arg(), arg(), arg(), arg()
  local last = first + count_of_args - 10
  local m, is_expired = load(nonce)
  local is_new = not m
  if is_new and first > 1 then
    return {GONE}
  elseif is_new then
    m = named(nonce)
    m.h, m.l, m.t, m.k = 0, 1, sub(start, 9), start
    m.b, m.n, m.w, m.e, m.q, m.held = LOG_COST + #about, 0, now, 0, 0, 0
  end
  -- Only events have a position: a log that was set back takes its end all the same.
  local is_there = last < first or (m.h == last and m.k == chain)
  if is_there and not is_new and (m.f or (retry == '' and tail == '')) then
    return state(m)
  elseif is_there then
    last = m.h
  elseif m.f then
    return {GONE}
  elseif m.h + 1 < first or (m.h + 1 == first and m.k ~= before) then
    return {ROLLED_BACK}
  elseif m.h + 1 > first then
    return {OUT_OF_ORDER}
  else
    m.k = chain
  end
  if is_new then
    if is_expired then
      remove(nonce)
    end
    purge()
    -- A server whose memory is full refuses what takes some, but only as the first change of a run.
    call('HSET', m.key, 'a', about, 'c', 0)
    call('UNLINK', m.events, m.pinned)
  end
  local kind
  for seq = m.h + 1, last do
    local value = arg() .. stamp
    if m.h >= m.l and call('RPUSHX', m.events, value) == 0 then
      lost(m)
    end
    if m.h < m.l then
      call('RPUSH', m.events, value)
      m.w, m.e = now, 0
    end
    kind = sub(value, 1, 1)
    if kind == '2' then
      m.q = m.q + call('HSET', m.pinned, seq, '')
      call('PEXPIRE', m.pinned, EVENTS_MS)
    end
    m.h, m.n, m.b = seq, m.n + 1, m.b + cost(value)
  end
  if retry ~= '' then
    call('HSET', m.key, 'r', retry)
  end
  if tail ~= '' then
    m.b = m.b + #tail - 1
    call('HSET', m.key, 'T', sub(tail, 2))
  end
  if kind == '3' or tail ~= '' then
    m.f = now
    call('HSET', m.key, 'f', now)
  end
  if is_log_over(m) then
    shrink(m, is_log_over)
  end
  save(m)
  if m.f then
    keep_finished(m)
  elseif now - m.e > REFRESH_MS then
    keep(m)
  end
  if kind or m.f then
    tell(m.followers, nonce)
  end
  written[nonce] = true
  return state(m)
end

-- settle: nonce, position
function ops.S()
  local m, seq = load(arg()), number()
  if not m or m.q == 0 then
    return {0}
  end
  local value = call('HGET', m.pinned, seq)
  if value and sub(value, 1, 1) ~= '3' then
    call('HDEL', m.pinned, seq)
    m.q = m.q - 1
    if value ~= '' then
      m.n, m.b = m.n - 1, m.b - cost(value)
    end
    save(m)
  end
  return state(m)
end

-- drop_stream: nonce
function ops.D()
  local nonce = arg()
  local m, is_expired = load(nonce)
  if m or is_expired then
    remove(nonce)
  end
  return {0}
end

-- drop_session
function ops.X()
  forget_session()
  return {0}
end

-- release
function ops.R()
  owner = ''
  call('HSET', skey, 'o', owner)
  return {0}
end

-- What a reader gets of a log: after, up to, events, bytes. And the tag at the position.
local function page(m)
  local after, up_to, max_events, max_bytes = number(), number(), number(), number()
  local tag, entries, bytes, has_room = false, {}, 0, true
  local function take(seq, value)
    local size = #value - HEADER - STAMP
    has_room = has_room and #entries < 2 * max_events and (bytes == 0 or bytes + size <= max_bytes)
    if has_room then
      bytes = bytes + size
      entries[#entries + 1], entries[#entries + 2] = seq, value
    end
  end
  -- Places in the list are counted from the nearer end.
  local function place(seq)
    return seq - m.l < m.h - seq and seq - m.l or seq - m.h - 1
  end
  if m.l <= m.h and after <= m.h then
    local value = call('LINDEX', m.events, place(math.max(after, m.l)))
    if not value then
      lost(m)
      save(m)
    elseif after >= m.l then
      tag = sub(value, 2, HEADER)
    end
  end
  local start, stop, step = math.max(after + 1, m.l), math.min(up_to, m.h), 4
  if after + 1 == m.l then
    tag = m.t
  elseif after + 1 < m.l and m.q > 0 then
    local all, seqs, values = call('HGETALL', m.pinned), {}, {}
    for field = 1, #all, 2 do
      local seq = tonumber(all[field])
      if all[field + 1] ~= '' and seq > after and seq <= up_to and seq < m.l then
        seqs[#seqs + 1], values[seq] = seq, all[field + 1]
      end
    end
    table.sort(seqs)
    for _, seq in ipairs(seqs) do
      take(seq, values[seq])
    end
  end
  while has_room and start <= stop and #entries < 2 * max_events do
    local last = math.min(start + math.min(step, max_events) - 1, stop)
    local got = call('LRANGE', m.events, place(start), place(last))
    if #got == 0 then
      break
    end
    for _, value in ipairs(got) do
      take(start, value)
      start = start + 1
    end
    step = math.min(step * 4, 64)
  end
  local v = call('HMGET', m.key, 'T', 'c')
  return {m.h, m.l, tag, entries, m.k, m.f and 1 or 0, v[1], v[2], epoch, owner}, after
end

-- read: nonce, and what a page is of
function ops.G()
  local m = load(arg())
  return m and {0, (page(m))} or {GONE}
end

-- attach: the number of names that whoever asks has, these, nonce, whether it counts, the tag that it knows, and what a
-- page is of
function ops.L()
  local v = call('HMGET', skey, 'p', 'v', 'r', 'l', 's')
  local is_known = false
  for _ = 1, number() do
    is_known = arg() == v[1] or is_known
  end
  if not epoch then
    return {GONE}
  elseif not is_known then
    return {0, 1}
  end
  local m, counts, tag = load(arg()), arg() == '1', arg()
  if not m then
    return {0, 0, v[1], v[2], v[3], v[4], v[5], false}
  end
  local found, after = page(m)
  if counts and after <= m.h and (tag == '' or not found[3] or found[3] == tag) then
    found[8] = call('HINCRBY', m.key, 'c', 1)
    tell(m.followers .. owner, m.nonce)
    call('HSET', m.key, 'o', sub(me .. string.gsub(m.followers, me, ''), 1, FOLLOWERS * #me))
  end
  local about = call('HMGET', m.key, 'a', 'r')
  return {0, 0, v[1], v[2], v[3], v[4], v[5], found, about[1], about[2]}
end

-- The owner is still there: nonces of its logs that run
function ops.T(count_of_args)
  if owner ~= me then
    return {FENCED}
  end
  local gone = {}
  for _ = 1, count_of_args do
    local nonce = arg()
    local m = load(nonce)
    if not m then
      gone[#gone + 1] = nonce
    elseif not m.f then
      keep(m)
    end
  end
  keep_session()
  return {0, gone}
end

-- What is wrong with the server as a whole is told as its error, so that everything is tried again elsewhere.
local FOR_ALL = {'READONLY', 'NOREPLICAS', 'MASTERDOWN', 'CLUSTERDOWN', 'TRYAGAIN'}
-- What changes a session names its epoch first.
local CHANGES = {A = true, S = true, D = true, X = true, R = true}
local results = {}
while at < #ARGV do
  local op, args = arg(), number()
  local following = at + args
  local refused = CHANGES[op] and arg() ~= epoch and {epoch and FENCED or GONE}
  local ok, result = true, refused
  if not refused then
    ok, result = pcall(ops[op], args)
  end
  if not ok then
    local text = type(result) == 'table' and result.err or tostring(result)
    for _, word in ipairs(FOR_ALL) do
      if string.find(text, word, 1, true) then
        return redis.error_reply(word .. ' ' .. text)
      end
    end
    result = {FAILED, text}
  end
  results[#results + 1] = result
  at = following
end
if is_over then
  trim_session()
end
-- Done is done, also where nobody may be told.
local untold = false
for name, nonces in pairs(told) do
  if name ~= me then
    local names = {}
    for nonce in pairs(nonces) do
      names[#names + 1] = nonce
    end
    local answer = redis.pcall('PUBLISH', string.match(prefix, '^[^{]*') .. 'n:' .. name, table.concat(names, ',') .. ':' .. session)
    untold = type(answer) == 'table' and answer.err or untold
  end
end
return {trimmed, others, results, untold}

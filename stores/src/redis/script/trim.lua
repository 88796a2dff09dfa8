-- What goes when there is too much, or when its time is over.

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

-- Removes a log, and the message that it is the answer of. Where its bytes are not known any more, those of the session are
-- summed up again.
local function remove(nonce)
  local m = named(nonce)
  local v = redis.pcall('HMGET', m.key, 'b', 'o', 'i')
  local bytes, followers, seq = tonumber(v[1] or ''), v[2], tonumber(v[3] or '')
  tell(followers, nonce)
  if seq then
    forget_messages(math.abs(seq), math.abs(seq))
  end
  call('UNLINK', m.key, m.events, m.pinned)
  call('ZREM', ikey, nonce)
  others[#others + 1], others[#others + 2], others[#others + 3] = nonce, -1, 0
  if bytes then
    return count(-bytes)
  end
  local total = 0
  for _, entry in ipairs(call('ZRANGE', xkey, 0, -1)) do
    total = total + size_of(entry)
  end
  for _, other in ipairs(call('ZRANGE', ikey, 0, -1)) do
    total = total + (tonumber(call('HGET', named(other).key, 'b')) or 0)
  end
  call('HSET', skey, 'b', total)
end

local function forget_session()
  for _, nonce in ipairs(call('ZRANGE', ikey, 0, -1)) do
    local m = named(nonce)
    local followers = redis.pcall('HGET', m.key, 'o')
    tell(type(followers) == 'string' and followers, nonce)
    call('UNLINK', m.key, m.events, m.pinned)
  end
  call('UNLINK', skey, ikey, xkey)
  epoch, owner, posted, taken, waiting, waiting_bytes = false, false, 0, 0, 0, 0
end

-- Logs whose time is over leave the session, a few at a time.
local function purge()
  for first, last in pairs({['(0'] = now_us, [-now] = '(0'}) do
    for _, nonce in ipairs(call('ZRANGEBYSCORE', ikey, first, last, 'LIMIT', 0, 16)) do
      remove(nonce)
    end
  end
end

-- The session's logs that have ended go first, in the order in which their time is over, then the oldest events of its largest.
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
      if bytes > most and (tonumber(v[2] or '') or 0) > 1 then
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

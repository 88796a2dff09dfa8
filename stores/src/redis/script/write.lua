-- What changes a log.

-- A log that is not there, and begins with this chain.
local function fresh(nonce, about, start)
  local m = named(nonce)
  m.h, m.l, m.t, m.k = 0, 1, sub(start, 9), start
  m.b, m.n, m.w, m.e, m.q, m.held = LOG_COST + #about, 0, now, 0, 0, 0
  m.followers = ''
  return m
end

-- Makes room for a log that is not there, and creates it with these fields.
local function create(m, is_expired, ...)
  if is_expired then
    remove(m.nonce)
  end
  purge()
  -- A server whose memory is full refuses what takes some, but only as the first change of a run.
  call('HSET', m.key, 'c', 0, ...)
  call('UNLINK', m.events, m.pinned)
end

-- A message waits, with the log of its answer. Returns that, or why it may not.
local function post(nonce, is_expired, about, start, body)
  local size = #about + #body
  if waiting >= MAX_INBOX_MESSAGES then
    return nil, {INBOX_FULL, MAX_INBOX_MESSAGES}
  elseif waiting > 0 and waiting_bytes + size > MAX_INBOX_BYTES then
    return nil, {INBOX_FULL, MAX_INBOX_BYTES}
  end
  local m = fresh(nonce, about, start)
  posted = posted + 1
  m.i, m.followers = posted, me
  create(m, is_expired, 'a', about, 'i', m.i, 'M', body, 'o', me)
  call('ZADD', xkey, m.i, nonce .. size)
  waiting, waiting_bytes = waiting + 1, waiting_bytes + size
  save_inbox()
  count(size)
  save(m)
  keep(m)
  tell(owner, '+')
  return m
end

-- append: nonce, first, chain before, chain after, pace, for how long it says that the log is kept, = and the end, about and chain for a log that is created, values
function ops.A(count_of_args)
  local nonce, first, before, chain = arg(), number(), arg(), arg()
  local paced, kept, tail, about, start = arg(), arg(), arg(), arg(), arg()
  local last = first + count_of_args - 11
  local m, is_expired = load(nonce)
  local is_new = not m
  if is_new and first > 1 then
    return {GONE}
  elseif is_new then
    m = fresh(nonce, about, start)
  end
  -- Only events have a position: a log that was set back takes its end all the same.
  local is_there = last < first or (m.h == last and m.k == chain)
  if is_there and not is_new and (m.f or (paced == '' and tail == '')) then
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
    create(m, is_expired, 'a', about)
  elseif waits(m) then
    answers(m)
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
  if paced ~= '' then
    m.z = tonumber(kept)
    call('HSET', m.key, 'r', paced, 'z', kept)
  end
  if kind == '3' or tail ~= '' then
    finish(m, tail ~= '' and sub(tail, 2))
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

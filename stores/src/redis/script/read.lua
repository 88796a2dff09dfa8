-- What a reader gets.

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
  local v = call('HMGET', m.key, 'T', 'c', 'r')
  return {m.h, m.l, tag, entries, m.k, m.f and 1 or 0, v[1], v[2], epoch, owner, v[3]}, after
end

-- read: nonce, and what a page is of
function ops.G()
  local m = load(arg())
  return m and {0, (page(m))} or {GONE}
end

-- attach: the number of names that the caller has, these, nonce, whether it counts, the tag that it knows, whether there
-- is a message, and what that is: what its log is created with, the chain of that, the message; and what a page is of
function ops.L()
  local v = call('HMGET', skey, 'p', 'v', 'r', 'l', 's', 'm')
  local is_known = false
  for _ = 1, number() do
    is_known = arg() == v[1] or is_known
  end
  if not epoch then
    return {GONE}
  elseif not is_known then
    return {0, 1}
  end
  local nonce, counts, tag, posts = arg(), arg() == '1', arg(), arg() == '1'
  local about, start, body
  if posts then
    about, start, body = arg(), arg(), arg()
  end
  local m, is_expired = load(nonce)
  local refused
  if posts and not m then
    m, refused = post(nonce, is_expired, about, start, body)
  end
  if refused then
    return refused
  elseif not m then
    return {0, 0, v[1], v[2], v[3], v[4], v[5], v[6], false}
  end
  local found, after = page(m)
  if counts and after <= m.h and (tag == '' or not found[3] or found[3] == tag) then
    found[8] = call('HINCRBY', m.key, 'c', 1)
    tell(m.followers .. owner, m.nonce)
    call('HSET', m.key, 'o', sub(me .. string.gsub(m.followers, me, ''), 1, FOLLOWERS * #me))
  end
  return {0, 0, v[1], v[2], v[3], v[4], v[5], v[6], found, call('HGET', m.key, 'a')}
end

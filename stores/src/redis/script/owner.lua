-- Who owns the session.

-- hold: epoch, the one that was seen; and where there is a record: revision, principal, retry, lists, standalone,
-- note
function ops.H(count_of_args)
  local own, seen = arg(), arg()
  if not epoch and (seen ~= '' or count_of_args == 2 or call('EXISTS', skey) == 1) then
    return {GONE}
  elseif epoch and epoch ~= own and epoch ~= seen and sub(epoch, 1, 16) >= sub(seen, 1, 16) then
    return {FENCED}
  end
  -- The server may have evicted the session and not its logs.
  if not epoch and call('EXISTS', ikey, xkey) > 0 then
    forget_session()
  end
  if epoch ~= own then
    tell(owner, '')
    forget_messages('-inf', taken)
  end
  call('HSET', skey, 'e', own, 'o', me)
  if count_of_args > 2 then
    call('HSET', skey, 'v', arg(), 'p', arg(), 'r', arg(), 'l', arg(), 's', arg(), 'm', arg())
  end
  epoch, owner = own, me
  keep_session()
  local running = {}
  for _, nonce in ipairs(seen ~= '' and call('ZRANGEBYSCORE', ikey, '-inf', '(0') or {}) do
    local m = load(nonce)
    if m and not m.f then
      keep(m)
      if not waits(m) then
        running[#running + 1] = {nonce, m.h, m.k, call('HGET', m.key, 'a') or '', m.n, m.b}
      end
    end
  end
  return {0, running}
end

-- drop_session. Where it had several owners its name stays taken: one that only stood still is not to bring it back.
function ops.X()
  local had_several = tonumber(sub(epoch, 1, 16), 16) > 1
  forget_session()
  if had_several then
    call('HSET', skey, 'd', 1)
    call('PEXPIRE', skey, NAME_MS)
  end
  return {0}
end

-- release
function ops.R()
  owner = ''
  call('HSET', skey, 'o', owner)
  return {0}
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

-- The inbox: messages that wait for the session's owner, each with the log of its answer.

-- Whether a log is the answer of a message that nobody has taken or withdrawn.
local function waits(m)
  return (m.i or 0) > 0
end

local function size_of(entry)
  return tonumber(sub(entry, NONCE + 1)) or 0
end

local function save_inbox()
  call('HSET', skey, 'n', posted, 'i', taken, 'w', waiting, 'W', waiting_bytes)
end

local function waits_no_more(entry)
  waiting, waiting_bytes = waiting - 1, waiting_bytes - size_of(entry)
end

-- A message is not kept any more. Its log may be gone, or another one of the same name.
local function forget(entry, seq)
  local key = named(sub(entry, 1, NONCE)).key
  call('ZREM', xkey, entry)
  local answers = redis.pcall('HGET', key, 'i')
  if type(answers) == 'string' and math.abs(tonumber(answers) or 0) == seq then
    call('HDEL', key, 'M')
  end
  count(-size_of(entry))
  if seq > taken then
    waits_no_more(entry)
    save_inbox()
  end
end

-- Messages with numbers of this range are not kept any more.
local function forget_messages(first, last)
  local found = call('ZRANGEBYSCORE', xkey, first, last, 'WITHSCORES')
  for place = 1, #found, 2 do
    forget(found[place], tonumber(found[place + 1]))
  end
end

-- Nobody is to take the message of this log any more: it is begun, or withdrawn (0).
local function answers(m, is_withdrawn)
  forget_messages(m.i, m.i)
  m.i = is_withdrawn and 0 or -m.i
  call('HSET', m.key, 'i', m.i)
end

-- take: the number up to which messages that were taken are forgotten
function ops.I()
  forget_messages('-inf', math.min(number(), taken))
  local mail, lost, first, waited, found = {}, 0, '-inf', waiting, nil
  repeat
    found = call('ZRANGEBYSCORE', xkey, first, '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_TAKEN - #mail)
    for place = 1, #found, 2 do
      local entry, seq = found[place], tonumber(found[place + 1])
      local nonce = sub(entry, 1, NONCE)
      local m = load(nonce)
      if m and math.abs(m.i or 0) == seq then
        local v = call('HMGET', m.key, 'a', 'M')
        mail[#mail + 1] = {seq, nonce, v[1] or '', v[2] or '', m.n, m.b, left(m)}
        if seq > taken then
          waits_no_more(entry)
          call('HSET', m.key, 'i', -seq)
          taken = seq
        end
      else
        forget(entry, seq)
        lost = lost + 1
      end
      first = '(' .. found[place + 1]
    end
  until #found == 0 or #mail == MAX_TAKEN
  if #found == 0 then
    -- Also where the server evicted what waited.
    waiting, waiting_bytes = 0, 0
  end
  if waiting ~= waited then
    save_inbox()
  end
  return {0, mail, lost}
end

-- withdraw: nonce, the end of its log
function ops.W()
  local m, tail = load(arg()), arg()
  if not m then
    return {GONE}
  end
  if waits(m) then
    answers(m, true)
    finish(m, tail)
    save(m)
    keep_finished(m)
    tell(m.followers, m.nonce)
    written[m.nonce] = true
  end
  return {0, m.i == 0 and 1 or 0}
end

-- Does what was asked, and tells others.

-- What is wrong with the server as a whole is told as its error, so that everything is tried again elsewhere.
local FOR_ALL = {'READONLY', 'NOREPLICAS', 'MASTERDOWN', 'CLUSTERDOWN', 'TRYAGAIN'}
-- What changes a session names its epoch first.
local CHANGES = {A = true, S = true, D = true, X = true, R = true, I = true}
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
  -- What cannot be trimmed keeps nobody from what was asked.
  pcall(trim_session)
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

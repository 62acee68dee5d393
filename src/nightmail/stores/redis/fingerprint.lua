-- What errors with the same cause have in common. As in records.py: the first characters of the first line, with '#' for
-- each word that has a digit in it.
local CHARACTERS = 200

local function fingerprint(error)
  local line = error:match('^[^\n]*')
  if #line > CHARACTERS then
    local seen = 0
    for place in line:gmatch('()[^\128-\191]') do
      seen = seen + 1
      if seen > CHARACTERS then
        line = line:sub(1, place - 1)
        break
      end
    end
  end
  -- %f: only where a word begins.
  return (line:gsub('%f[%w_%-][%a_%-]*%d[%w_%-]*', '#'))
end


-- Which requests make sense now, as `kubectl rljob` judges them.
local status = obj.status or {}
local attempt = status.attempt
local ended = (status.outcome or "") ~= ""

local function wants_suspend()
  if status.override ~= nil then
    return status.override.suspend == true
  end
  return obj.spec.suspend == true
end

local suspended = wants_suspend()
local runs = attempt ~= nil and (attempt.endedAt or "") == ""
return {
  suspend = { disabled = ended or suspended },
  resume = { disabled = ended or not suspended },
  restart = { disabled = ended or suspended or not runs },
}

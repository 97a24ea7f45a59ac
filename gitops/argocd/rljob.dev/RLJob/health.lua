-- Health of an RLJob, by the conditions that the operator keeps. Argo CD's sandbox has no string library.
-- A job in a sync wave is Healthy once it has succeeded, because the next wave waits for that; any other job is Healthy while it runs.
local status = obj.status or {}
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

local function is(kind)
  return found[kind] ~= nil and found[kind].status == "True"
end

local function health(word)
  local message = status.message or ""
  if message == "" then
    message = status.state or ""
  end
  return { status = word, message = message }
end

if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "waiting for the operator to observe this generation" }
end
if is("Stalled") then
  return health("Degraded")
end
if found["Admitted"] ~= nil and found["Admitted"].status == "False" then
  return { status = "Degraded", message = found["Admitted"].reason .. ": " .. (status.message or "") }
end
if is("Suspended") then
  return health("Suspended")
end
local wave = (obj.metadata.annotations or {})["argocd.argoproj.io/sync-wave"]
if is("Reconciling") or (wave ~= nil and not is("Succeeded")) then
  return health("Progressing")
end
return health("Healthy")

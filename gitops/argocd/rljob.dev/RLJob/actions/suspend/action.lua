-- Finish the step, save a checkpoint, free the pods. spec.suspend stays as Git has it, so that self-heal has nothing to undo.
local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["rljob.dev/request"] = '{"jobUid":"' .. obj.metadata.uid .. '","nonce":"suspend-'
  .. os.date("!%Y-%m-%dT%XZ") .. '","action":"suspend"}'
return obj

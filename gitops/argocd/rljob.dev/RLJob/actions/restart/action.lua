-- Drain the attempt that runs and open the next one, with the image and spec of now.
local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["rljob.dev/request"] = '{"jobUid":"' .. obj.metadata.uid .. '","nonce":"restart-'
  .. os.date("!%Y-%m-%dT%XZ") .. '","action":"restart"}'
return obj

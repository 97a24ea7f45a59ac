-- Resume a suspended job. The request overrides spec.suspend until that changes or another request comes.
local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["rljob.dev/request"] = '{"jobUid":"' .. obj.metadata.uid .. '","nonce":"resume-'
  .. os.date("!%Y-%m-%dT%XZ") .. '","action":"resume"}'
return obj

{{- /* Also of a Service, so it begins with a letter and has no dots; the name of a release may do otherwise. */}}
{{- define "rljob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if not (regexMatch "^[a-z]" $release) -}}
{{- printf "%s-%s" $name $release | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name $release -}}
{{- $release | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rljob.selector" -}}
app.kubernetes.io/name: rljob-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "rljob.labels" -}}
{{- include "rljob.labelsWith" (list . dict) -}}
{{- end -}}

{{- /* Of the list (context, further labels). The chart's own win, because selectors rely on them; further labels win over commonLabels. */}}
{{- define "rljob.labelsWith" -}}
{{- $context := index . 0 -}}
{{- $own := include "rljob.selector" $context | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" $context.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $context.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $context.Chart.Name $context.Chart.Version) -}}
{{- toYaml (merge $own (index . 1 | default dict) ($context.Values.commonLabels | default dict)) -}}
{{- end -}}

{{- define "rljob.serviceAccount" -}}
{{- default (ternary (include "rljob.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* A first part with a dot, a colon or the name localhost is a registry, as container runtimes read it. */}}
{{- define "rljob.repository" -}}
{{- $name := .Values.image.repository -}}
{{- with dig "imageRegistry" "" (.Values.global | default dict) -}}
{{- $parts := splitList "/" $name -}}
{{- if and (gt (len $parts) 1) (regexMatch "[.:]|^localhost$" (first $parts)) -}}
{{- $parts = rest $parts -}}
{{- end -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) (join "/" $parts) -}}
{{- end -}}
{{- if hasPrefix "registry.invalid/" $name -}}
{{- fail (printf "image.repository = %s: no image of RLJob is published yet, and nobody can own this name; build the image and push it (docs/quickstart.md), then set image.repository, or global.imageRegistry for the registry alone" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- /* As references, each once. Parent charts give names alone, too. */}}
{{- define "rljob.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (dig "imagePullSecrets" list (.Values.global | default dict) | default list) (.Values.imagePullSecrets | default list) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- $secrets | uniq | toYaml -}}
{{- end -}}

{{- define "rljob.image" -}}
{{- with .Values.image -}}
{{ include "rljob.repository" $ }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "rljob.jobPolicy" -}}
{{- omit (.Values.jobs | default dict) "networkPolicy" | toJson -}}
{{- end -}}

{{- define "vivavoce.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "vivavoce.selector" -}}
app.kubernetes.io/name: vivavoce
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "vivavoce.labels" -}}
{{ include "vivavoce.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Names by which a server without keys may be called, beside those that it always answers to. */}}
{{- define "vivavoce.allowedHosts" -}}
{{- $name := printf "%s.%s" (include "vivavoce.name" .) .Release.Namespace -}}
{{- $names := list $name (printf "%s.svc" $name) -}}
{{- if .Values.ingress.enabled }}{{ $names = append $names .Values.ingress.host }}{{ end -}}
{{- with .Values.settings.ALLOWED_HOSTS }}{{ $names = append $names . }}{{ end -}}
{{- join "," $names -}}
{{- end -}}

{{- define "vivavoce.image" -}}
{{- $kind := ternary "cuda" "cpu" (gt (int .Values.gpus) 0) -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion $kind) }}
{{- end -}}

{{- define "queen.labels" -}}
app.kubernetes.io/name: queen
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "queen.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "queen.peers" -}}
{{- $name := .Release.Name -}}
{{- range $number := until (int .Values.replicas) -}}
{{- if $number }},{{ end }}{{ $name }}-{{ $number }}.{{ $name }}-peers:6634
{{- end -}}
{{- end }}

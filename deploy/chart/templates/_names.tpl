{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "shunt.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* The arguments that the agent and the init container share. */ -}}
{{- define "shunt.args" -}}
- agent
{{- if .Values.kubeProxyConfigMap }}
- --config=/var/lib/kube-proxy/config.conf
{{- else }}
- --config=/etc/shunt/config.yaml
{{- end }}
- --cgroup-root=/host/cgroup
{{- if .Values.monitoring.enabled }}
- --metrics-bind-address=0.0.0.0:10249
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "shunt.configMount" -}}
- name: config
  {{- if .Values.kubeProxyConfigMap }}
  # The paths in config.conf are of this directory.
  mountPath: /var/lib/kube-proxy
  {{- else }}
  mountPath: /etc/shunt
  {{- end }}
  readOnly: true
{{- end }}

{{- define "shunt.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{/* The name of the objects. */}}
{{- define "outbox-operator.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outbox-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "outbox-operator.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* What selects the managers' pods. */}}
{{- define "outbox-operator.selector" -}}
app.kubernetes.io/name: outbox-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "outbox-operator.labels" -}}
{{ include "outbox-operator.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels and annotations of an object: dict "root" $, and "labels" and "annotations" of its own. */}}
{{- define "outbox-operator.metadata" -}}
labels:
  {{- include "outbox-operator.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* An object of config/, which hack/chart has copied: list $ "folder/kind-name". */}}
{{- define "outbox-operator.config" -}}
{{- (index . 0).Files.Get (printf "files/%s.yaml" (index . 1)) -}}
{{- end -}}

{{/* The Secrets that the operator's image is pulled with. */}}
{{- define "outbox-operator.pullSecrets" -}}
{{- concat .Values.imagePullSecrets .Values.global.imagePullSecrets | uniq | toYaml -}}
{{- end -}}

{{/* repository, tag and digest, as the kubelet reads them. */}}
{{- define "outbox-operator.reference" -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end -}}
{{- end -}}

{{- define "outbox-operator.image" -}}
{{- $i := .Values.image -}}
{{- include "outbox-operator.reference" (dict "repository" $i.repository "tag" ($i.tag | default .Chart.AppVersion) "digest" $i.digest) -}}
{{- end -}}

{{/* The dispatchers' image, when it is not the operator's: what is not set is the operator's, but for the digest. */}}
{{- define "outbox-operator.dispatcherImage" -}}
{{- $i := .Values.image -}}
{{- $d := .Values.dispatcher.image -}}
{{- if or $d.digest $d.tag $d.repository -}}
{{- include "outbox-operator.reference" (dict "repository" ($d.repository | default $i.repository) "tag" ($d.tag | default $i.tag | default .Chart.AppVersion) "digest" $d.digest) -}}
{{- end -}}
{{- end -}}

{{/* "true" when metrics are served over TLS to those who may get them. */}}
{{- define "outbox-operator.secureMetrics" -}}
{{- if and .Values.prometheus.enabled (ternary .Values.prometheus.secure (empty .Values.watchNamespaces) (kindIs "bool" .Values.prometheus.secure)) -}}
true
{{- end -}}
{{- end -}}

{{- define "outbox-operator.metricsPort" -}}
{{- ternary 8443 8080 (eq (include "outbox-operator.secureMetrics" .) "true") -}}
{{- end -}}

{{/* The operator's rules: those of one namespace, and with "cluster" those that only a ClusterRole can give. */}}
{{- define "outbox-operator.rules" -}}
{{- $role := include "outbox-operator.config" (list .root "rbac/clusterrole-outbox-operator") | fromYaml -}}
{{- $rules := list -}}
{{- range $role.rules -}}
{{- $reviewsAccess := or (has "authentication.k8s.io" .apiGroups) (has "authorization.k8s.io" .apiGroups) -}}
{{- if or (not $reviewsAccess) $.cluster -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* The managers' account, as the subject of a binding. */}}
{{- define "outbox-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "outbox-operator.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

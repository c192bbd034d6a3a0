{{/* The label app.kubernetes.io/name; selectors hold it, so it must not change between releases. */}}
{{- define "mount-s3.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "mount-s3.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mount-s3.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "mount-s3.labels" -}}
{{ include "mount-s3.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/component: csi-driver
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.customLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
The tag of our image. --reuse-values hands on the defaults of the chart that was installed before: its tag names an image with other
programs, which these templates can't run.
*/}}
{{- define "mount-s3.tag" -}}
{{- $older := list "1.0.0" "1.0.1" "1.1.0" "1.1.1" "1.2.0" "2.0.0" "2.0.1" "2.1.0" "2.1.1" "2.2.0" -}}
{{- $tag := toString (default "" .Values.image.tag) -}}
{{- if or (not $tag) (has $tag $older) }}{{ .Chart.AppVersion }}{{ else }}{{ $tag }}{{ end -}}
{{- end }}

{{- define "mount-s3.image" -}}
{{- $repository := printf "%s%s" (default "" .Values.image.containerRegistry) .Values.image.repository -}}
{{- include "mount-s3.imageName" (dict "root" . "repository" $repository "tag" (include "mount-s3.tag" .) "digest" .Values.image.digest) -}}
{{- end }}

{{/* An image that is not ours: an object with repository, tag and perhaps digest. */}}
{{- define "mount-s3.otherImage" -}}
{{- include "mount-s3.imageName" (dict "root" .root "repository" .image.repository "tag" .image.tag "digest" .image.digest) -}}
{{- end }}

{{/* With imageRegistry, the same path in that registry. The first part of a name is a registry if it has a point or a colon. */}}
{{- define "mount-s3.imageName" -}}
{{- $repository := .repository -}}
{{- with .root.Values.imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- if and (gt (len $parts) 1) (or (contains "." (first $parts)) (contains ":" (first $parts)) (eq "localhost" (first $parts))) -}}
{{- $repository = join "/" (rest $parts) -}}
{{- end -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if .digest }}{{ printf "%s@%s" $repository .digest }}{{ else }}{{ printf "%s:%s" $repository (toString .tag) }}{{ end -}}
{{- end }}

{{/* Names of pull secrets, joined by commas. Written as names or as objects with a name. */}}
{{- define "mount-s3.pullSecretNames" -}}
{{- $names := list -}}
{{- range .Values.imagePullSecrets }}
{{- if kindIs "map" . }}{{ $names = append $names .name }}{{ else }}{{ $names = append $names . }}{{ end }}
{{- end }}
{{- join "," $names -}}
{{- end }}

{{- define "mount-s3.pullSecrets" -}}
{{- with include "mount-s3.pullSecretNames" . -}}
imagePullSecrets:
{{- range splitList "," . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "mount-s3.kubeletPath" -}}
{{ trimSuffix "/" .Values.node.kubeletPath }}
{{- end }}

{{- define "mount-s3.pluginPath" -}}
{{ include "mount-s3.kubeletPath" . }}/plugins/s3.csi.scality.com
{{- end }}

{{/* Values of release 1.0 and 1.1 stand below node; where somebody still has them, they win, as in 1.2 and 2.2. */}}
{{- define "mount-s3.endpointUrl" -}}
{{- coalesce .Values.node.s3EndpointUrl (.Values.s3).endpointUrl | required "s3.endpointUrl is empty: say where the S3 store answers" -}}
{{- end }}

{{- define "mount-s3.region" -}}
{{- coalesce .Values.node.s3Region (.Values.s3).region "us-east-1" -}}
{{- end }}

{{/* The form of log lines, as a variable of a container. */}}
{{- define "mount-s3.logFormat" -}}
{{- if eq (toString .Values.logFormat) "json" }}
- name: LOG_FORMAT
  value: json
{{- end }}
{{- end }}

{{/* The store and the driver's own keys, as variables of a container. */}}
{{- define "mount-s3.store" -}}
- name: AWS_ENDPOINT_URL
  value: {{ include "mount-s3.endpointUrl" . | quote }}
- name: AWS_REGION
  value: {{ include "mount-s3.region" . | quote }}
{{- with (.Values.s3).allowedEndpoints }}
- name: ALLOWED_ENDPOINTS
  value: {{ join "," . | quote }}
{{- end }}
{{- if .Values.s3CredentialSecret }}
- name: DRIVER_CREDENTIALS_DIRECTORY
  value: /etc/s3-credentials
{{- end }}
{{- end }}

{{/* The driver's own keys, as files that follow the Secret. */}}
{{- define "mount-s3.keysMount" -}}
{{- if .Values.s3CredentialSecret }}
- name: driver-credentials
  mountPath: /etc/s3-credentials
  readOnly: true
{{- end }}
{{- end }}

{{- define "mount-s3.keysVolume" -}}
{{- with .Values.s3CredentialSecret }}
- name: driver-credentials
  secret:
    secretName: {{ .name | quote }}
    optional: true
    items:
      - { key: {{ .accessKeyId | quote }}, path: access_key_id }
      - { key: {{ .secretAccessKey | quote }}, path: secret_access_key }
      - { key: {{ .sessionToken | quote }}, path: session_token }
{{- end }}
{{- end }}

{{/* The ConfigMap with certificates to trust, in this namespace and in that of the Mountpoint Pods; empty: none. */}}
{{- define "mount-s3.caConfigMap" -}}
{{- with .Values.tls }}
{{- if .caCertConfigMap }}{{ .caCertConfigMap }}{{ else if .caCertData }}s3-csi-ca{{ end }}
{{- end }}
{{- end }}

{{/* How nodes make mounts: pod, shared or systemd. Value sets of older releases do not say. */}}
{{- define "mount-s3.mounter" -}}
{{- default "pod" .Values.node.mounter -}}
{{- end }}

{{/* What a node does with new volumes while no reconciler works: unavailable, or systemd. With systemd for all mounts there is no reconciler. */}}
{{- define "mount-s3.degraded" -}}
{{- if eq (include "mount-s3.mounter" .) "pod" }}{{ default "unavailable" .Values.node.degraded }}{{ end -}}
{{- end }}

{{/* Whether nodes ask their systemd. */}}
{{- define "mount-s3.asksSystemd" -}}
{{- if or (eq (include "mount-s3.mounter" .) "systemd") (eq (include "mount-s3.degraded" .) "systemd") }}true{{ end -}}
{{- end }}

{{/* Whether there is a controller pod. With systemd only for claims that get volumes. */}}
{{- define "mount-s3.hasController" -}}
{{- if or (eq (include "mount-s3.mounter" .) "pod") (ne (toString .Values.controller.enable) "false") }}true{{ end -}}
{{- end }}

{{/* Whether the reconciler has a Deployment and an account of its own. Without Mountpoint Pods there is none. */}}
{{- define "mount-s3.isSplit" -}}
{{- if and (eq (include "mount-s3.mounter" .) "pod") (eq (toString .Values.controller.split) "true") }}true{{ end -}}
{{- end }}

{{/* Whether nodes have engines pods: with node.mounter pod those of before, until shared.experimental is false. */}}
{{- define "mount-s3.hasEngines" -}}
{{- $mounter := include "mount-s3.mounter" . -}}
{{- if or (eq $mounter "shared") (and (eq $mounter "pod") (eq (toString (.Values.shared).experimental) "true")) }}true{{ end -}}
{{- end }}

{{/* The share of one engine in the memory limit of an engines pod, in MiB. */}}
{{- define "mount-s3.share" -}}
{{- $limit := dig "resources" "limits" "memory" "2Gi" (default dict .Values.shared) -}}
{{- $mib := trimSuffix "Mi" $limit -}}
{{- if hasSuffix "Gi" $limit }}{{ $mib = mul 1024 (int (trimSuffix "Gi" $limit)) }}{{ end -}}
{{- div (int $mib) (int (include "mount-s3.maxVolumes" .)) -}}
{{- end }}

{{/* What caches of an engines pod may have together, in MiB: the kubelet ends a pod whose emptyDir is larger than its limit. */}}
{{- define "mount-s3.sharedCache" -}}
{{- $size := .Values.shared.cache.size -}}
{{- $mib := trimSuffix "Mi" $size -}}
{{- if hasSuffix "Gi" $size }}{{ $mib = mul 1024 (int (trimSuffix "Gi" $size)) }}{{ end -}}
{{- div (mul (int $mib) 95) 100 -}}
{{- end }}

{{- define "mount-s3.maxVolumes" -}}
{{- dig "maxVolumes" 8 (default dict .Values.shared) -}}
{{- end }}

{{/* The account of the reconciler. */}}
{{- define "mount-s3.reconcilerAccount" -}}
{{- if include "mount-s3.isSplit" . }}{{ default "s3-csi-driver-reconciler-sa" (.Values.controller.reconcilerServiceAccount).name }}{{ else }}{{ .Values.controller.serviceAccount.name }}{{ end -}}
{{- end }}

{{/* Where the host has the engine that systemd starts. */}}
{{- define "mount-s3.installPath" -}}
{{- trimSuffix "/" (default "/opt/mountpoint-s3-csi/bin" .Values.node.mountpointInstallPath) -}}
{{- end }}

{{/* A value that older value sets do not have counts as true. */}}
{{- define "mount-s3.createNamespace" -}}
{{- if ne (toString .Values.mountpointPod.createNamespace) "false" }}true{{ end -}}
{{- end }}

{{/* "true" if room is reserved for Mountpoint Pods. */}}
{{- define "mount-s3.reservesHeadroom" -}}
{{- if and (eq (include "mount-s3.mounter" .) "pod") (eq (toString (.Values.experimental).reserveHeadroomForMountpointPods) "true") }}true{{ end -}}
{{- end }}

{{/* Image and classes for it as YAML. --reuse-values may pass on a release's values that had none. */}}
{{- define "mount-s3.headroom" -}}
{{- $pod := .Values.mountpointPod -}}
{{- $image := mergeOverwrite (dict "repository" "registry.k8s.io/pause" "tag" "3.10") (default dict $pod.headroomImage) -}}
preempting: {{ default "mount-s3-preempting" $pod.preemptingPriorityClassName | quote }}
class: {{ default "mount-s3-headroom" $pod.headroomPriorityClassName | quote }}
image: {{ include "mount-s3.otherImage" (dict "root" . "image" $image) }}
pullPolicy: {{ default .Values.image.pullPolicy $image.pullPolicy }}
{{- end }}

{{/*
An affinity as YAML, to the architectures of the image besides. Each term of a node affinity is enough by itself, so each gets them. Value sets
of older releases name no architectures: their image was for one.
*/}}
{{- define "mount-s3.affinity" -}}
{{- $affinity := deepCopy (default dict .affinity) -}}
{{- $architectures := list "amd64" -}}
{{- if hasKey .root.Values.image "architectures" }}{{ $architectures = .root.Values.image.architectures }}{{ end -}}
{{- with $architectures -}}
{{- $ours := dict "key" "kubernetes.io/arch" "operator" "In" "values" . -}}
{{- $node := default dict $affinity.nodeAffinity -}}
{{- $required := default dict $node.requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $terms := list -}}
{{- range default (list dict) $required.nodeSelectorTerms -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (append (default list .matchExpressions) $ours)) (omit . "matchExpressions")) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* Which Secrets the provisioner may get: cluster, namespaces or none. Value sets of older releases do not say: all. */}}
{{- define "mount-s3.secrets" -}}
{{- default "cluster" (.Values.rbac).secrets -}}
{{- end }}

{{- define "mount-s3.secretNamespaces" -}}
{{- if eq (include "mount-s3.secrets" .) "namespaces" }}{{ toJson .Values.rbac.secretNamespaces }}{{ else }}[]{{ end -}}
{{- end }}

{{/* Settings of each Mountpoint Pod as JSON. A list without a toleration is one; what is empty else is left to the reconciler. */}}
{{- define "mount-s3.podTemplate" -}}
{{- $set := dict -}}
{{- range $name := list "podSecurityContext" "securityContext" "dnsPolicy" "dnsConfig" "hostAliases" "runtimeClassName" -}}
{{- with get $.Values.mountpointPod $name }}{{ $_ := set $set $name . }}{{ end -}}
{{- end -}}
{{- if hasKey .Values.mountpointPod "tolerations" }}{{ $_ := set $set "tolerations" .Values.mountpointPod.tolerations }}{{ end -}}
{{- with $set }}{{ toJson . }}{{ end -}}
{{- end }}

{{/* The directory of the nodes for stages; empty for none. */}}
{{- define "mount-s3.stagePath" -}}
{{- with (.Values.mountpointPod.stage).hostPath }}{{ clean . }}{{ end }}
{{- end }}

{{/* Sets a variable of a container: takes the place of one of that name, or comes last. */}}
{{- define "twophase.variable" -}}
{{- $name := .variable.name -}}
{{- $others := list -}}
{{- range .container.env -}}
{{- if ne .name $name }}{{ $others = append $others . }}{{ end -}}
{{- end -}}
{{- $_ := set .container "env" (append $others .variable) -}}
{{- end -}}

{{/* Lays the values over the Deployment. What it returns is nothing: the object itself is changed. */}}
{{- define "twophase.deployment" -}}
{{- $values := .values -}}
{{- $pod := .object.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set .object.spec "replicas" $values.replicas -}}
{{- $_ := set $container "image" (printf "%s:%s" $values.image.repository $values.image.tag) -}}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy -}}
{{- $_ := set $container "resources" $values.resources -}}
{{- with $values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- with $values.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end -}}
{{- with $values.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end -}}
{{- range $name, $value := $values.env -}}
{{- include "twophase.variable" (dict "container" $container "variable" (dict "name" $name "value" (toString $value))) -}}
{{- end -}}
{{- $drain := dict "name" "TWOPHASE_DRAIN_S" "value" (toString $values.drainSeconds) -}}
{{- include "twophase.variable" (dict "container" $container "variable" $drain) -}}
{{- $hang := dict "name" "TWOPHASE_HANG_S" "value" (toString $values.hangSeconds) -}}
{{- include "twophase.variable" (dict "container" $container "variable" $hang) -}}
{{- /* What the manifest leaves beside its own drain, for the pause before it and the ends after it, is left here. */ -}}
{{- $_ := set $pod "terminationGracePeriodSeconds" (add (int $values.drainSeconds) 30) -}}
{{- $often := int $container.livenessProbe.periodSeconds -}}
{{- $_ := set $container.livenessProbe "failureThreshold" (div (add (int $values.hangSeconds) 30) $often) -}}
{{- $every := int $container.startupProbe.periodSeconds -}}
{{- $_ := set $container.startupProbe "failureThreshold" (div (add (int $values.startSeconds) (sub $every 1)) $every) -}}
{{- range $container.env -}}
{{- if .valueFrom }}{{ with .valueFrom.secretKeyRef }}{{ $_ := set . "name" $values.secretName }}{{ end }}{{ end -}}
{{- end -}}
{{- range $pod.volumes -}}
{{- if .secret }}{{ $_ := set .secret "secretName" $values.secretName }}{{ end -}}
{{- if and (eq .name "cache") $values.cacheClaim -}}
{{- $_ := unset . "emptyDir" -}}
{{- $_ := set . "persistentVolumeClaim" (dict "claimName" $values.cacheClaim) -}}
{{- end -}}
{{- end -}}
{{- end -}}

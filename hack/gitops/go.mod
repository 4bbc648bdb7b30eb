// The interpreter of Argo CD's Lua, which only the test of config/gitops needs.
module github.com/outbox-operator/outbox-operator/hack/gitops

go 1.26.0

require (
	github.com/yuin/gopher-lua v1.1.2
	sigs.k8s.io/yaml v1.6.0
)

require go.yaml.in/yaml/v2 v2.4.4 // indirect

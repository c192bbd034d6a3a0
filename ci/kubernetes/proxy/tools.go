//go:build tools

// Package proxy names the command that ci/cluster builds on demand, so that go.mod and go.sum hold what it needs.
package proxy

import _ "k8s.io/kubernetes/cmd/kube-proxy"

// Package crds holds the CustomResourceDefinitions. They have one home: the chart, config/crd and the programs read these
// files.
package crds

import "embed"

// Files are the definitions, each as outbox.dev_PLURAL.yaml.
//
//go:embed outbox.dev_*.yaml
var Files embed.FS

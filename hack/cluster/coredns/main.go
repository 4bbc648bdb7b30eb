// coredns is the cluster's DNS server: CoreDNS with only the plugins that one node needs.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which a query passes through the plugins.
	dnsserver.Directives = []string{"bind", "errors", "hosts", "kubernetes", "template"}
	coremain.Run()
}

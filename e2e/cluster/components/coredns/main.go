// CoreDNS with the plugins that ../../scripts/coredns.yaml names, and no others: most of the released program's 1,277 packages are clients of
// clouds and tracers, which a local cluster does not need and would wait for while they compile.
package main

// Names are looked up without the C library, which cannot do it where it is linked into a program.
//
//go:debug netdns=go

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() {
	// A request passes through them in this order, which is that of the released program's plugin.cfg.
	dnsserver.Directives = []string{"ready", "health", "errors", "loadbalance", "template", "kubernetes"}
}

func main() {
	coremain.Run()
}

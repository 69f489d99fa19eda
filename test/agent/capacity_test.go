// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// TestAsManyServicesFitAsWereAskedFor: the node's own addresses take no Service's room, and those that do not fit come
// as soon as others go.
func TestAsManyServicesFitAsWereAskedFor(t *testing.T) {
	w := agentlab.New(t)
	server, client := agentlab.Serve(w.Node, "server"), agentlab.Serve(w.Node, "client")
	const fit, all = 3, 5 // --max-services counts the id 0, which no Service has
	address := func(i int) string { return fmt.Sprintf("10.96.0.%d", i) }
	service := func(i int) string { return fmt.Sprintf("s%d", i) }
	for i := range all {
		w.Write(service(i), agentlab.Simple(service(i), address(i+1), agentlab.Ready(server)...)...)
	}
	w.StartAgent(fmt.Sprintf("--max-services=%d", fit+1))
	var reached []int
	for i := range all {
		if agentlab.Reach(client, process.TCP, agentlab.At(address(i+1)+":80")) == "server" {
			reached = append(reached, i)
		}
	}
	if len(reached) != fit {
		t.Fatalf("of %d Services %v are reached, want %d", all, reached, fit)
	}
	for _, i := range reached {
		w.Remove(service(i))
	}
	for i := fit; i < all; i++ {
		w.AwaitReached(client, process.TCP, agentlab.At(address(i+1)+":80"), "server")
	}
}

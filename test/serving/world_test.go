// SPDX-License-Identifier: Apache-2.0

// Package serving proves what a running `shunt agent` serves: its health, its metrics and its configuration, the health
// ports of Services, and that all of it follows the Node object.
package serving

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

func TestMain(m *testing.M) { agentlab.Main(m) }

// answer is what an HTTP server said; status is 0 and body the reason when nobody did.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %v %s", a.status, a.header, a.body) }

// get asks from within a network namespace, past every cgroup with programs: as a client that is no pod does.
func get(from *lab.Namespace, address netip.AddrPort, path string) answer {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (connection net.Conn, err error) {
			err = from.Do(func() error {
				connection, err = (&net.Dialer{Timeout: agentlab.Patience}).DialContext(ctx, network, address)
				return err
			})
			return connection, err
		}}
	response, err := (&http.Client{Transport: transport}).Get(fmt.Sprintf("http://%s%s", address, path))
	if err != nil {
		return answer{body: err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// nodeManifest is the Node object of the agent's node; metadata and spec are YAML in flow style, without braces.
func nodeManifest(name, metadata, spec string, addresses ...netip.Addr) string {
	list := ""
	for _, a := range addresses {
		list += fmt.Sprintf("{type: InternalIP, address: '%s'}, ", a)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, %s}\nspec: {%s}\nstatus: {addresses: [%s]}",
		name, metadata, spec, list)
}

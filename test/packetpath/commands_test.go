// SPDX-License-Identifier: Apache-2.0

package packetpath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestCommandsAndMetricsShowThePacketPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.Routed)
	w.service("near", 1, "", w.near)
	w.service("nobody", 5, "")
	w.start()
	s := w.sides()[0]
	flow := w.client.Dial(process.TCP, s.frontends(1)["node port"])
	if answer := flow.Exchange("who"); answer.Server != "near" {
		t.Fatalf("reached %q (%s)", answer.Server, answer.Errno)
	}
	if got, _ := ask(w.client, process.TCP, s.frontends(5)["node port"]); got != "ECONNREFUSED" {
		t.Fatalf("a Service without endpoints: %s", got)
	}

	for _, c := range []struct {
		command string
		want    []string
	}{
		{"conntrack default/near", []string{s.client.String(), "172.20.0.10:30001", s.near.String() + ":8080", "established"}},
		{"conntrack --client " + s.client.String() + " -o json", []string{`"masqueraded": false`, `"state": "established"`}},
		{"services default/near -o json", []string{`"flows": 1`}},
		{"services default/nobody -o json", []string{`"rejected": 1`}},
		{fmt.Sprintf("explain %s --from external", s.frontends(1)["node port"]), []string{"TRANSLATED", "tc: where", "only backend"}},
		{fmt.Sprintf("explain %s --from external", s.frontends(5)["node port"]), []string{"REFUSED"}},
		{"explain 10.96.0.99:80 --from external", []string{"DROPPED", "range of ClusterIPs"}},
	} {
		output := w.Shunt(strings.Fields(c.command)...)
		for _, want := range c.want {
			if !strings.Contains(output, want) {
				t.Errorf("shunt %s does not say %q:\n%s", c.command, want, output)
			}
		}
	}
	if output := w.Shunt("conntrack", "--client", "192.0.2.1", "-o", "json"); output != "[]\n" {
		t.Errorf("flows of nobody: %s", output)
	}
	// doctor fails for other reasons in a lab: it may not.
	if output, _, _ := w.TryShunt("doctor"); !strings.Contains(output, "packet-path") {
		t.Errorf("doctor does not tell of the packet path:\n%s", output)
	}
	w.expectMetric(`shunt_service_packet_flows_total{family="IPv4",namespace="default",port="tcp",protocol="TCP",` +
		`service="near"} 1`)
}

// expectMetric requires a line of /metrics.
func (w *world) expectMetric(line string) {
	w.T.Helper()
	socket := w.Node.Process().Dial(process.TCP, agentlab.At("127.0.0.1:10249"))
	defer socket.Close()
	socket.Send(netip.AddrPort{}, "GET /metrics HTTP/1.0\r\n\r\n")
	var page strings.Builder
	for {
		received := socket.Receive(agentlab.Patience)
		page.WriteString(received.Data)
		if !received.OK() || received.EOF {
			break
		}
	}
	if !strings.Contains(page.String(), line+"\n") {
		w.T.Errorf("/metrics lacks %s", line)
	}
}

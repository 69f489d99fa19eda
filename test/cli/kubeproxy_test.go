// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/cli"
	"github.com/shunt-lb/shunt/pkg/kubeproxy"
	"github.com/shunt-lb/shunt/test/lab"
)

// inNamespace runs f in a network namespace of its own, whose rules nobody else sees.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	if err := lab.New(t).Node(lab.NodeOptions{}).Do(f); err != nil {
		t.Fatal(err)
	}
}

// cleanKubeProxy runs the command and returns what it printed.
func cleanKubeProxy(t *testing.T) (stdout, stderr string, status int) {
	var out, errs bytes.Buffer
	status = cli.Run(t.Context(), []string{"cleanup", "--kube-proxy"}, &out, &errs)
	return out.String(), errs.String(), status
}

func TestKubeProxysTablesAreFoundAndRemovedAndNoOthers(t *testing.T) {
	inNamespace(t, func() error {
		for _, table := range []nftTable{
			{unix.NFPROTO_IPV4, "kube-proxy"}, {unix.NFPROTO_IPV6, "kube-proxy"}, {unix.NFPROTO_IPV4, "mine"},
			{unix.NFPROTO_INET, "kube-proxy"}, // somebody else's: kube-proxy's are of the families ip and ip6
		} {
			if err := table.create("service-ips"); err != nil {
				return err
			}
		}
		state, err := kubeproxy.Find("/proc")
		if err != nil {
			return err
		}
		if want := []string{"ip kube-proxy", "ip6 kube-proxy"}; !slices.Equal(state.Tables, want) {
			t.Errorf("found %v, want %v", state.Tables, want)
		}
		stdout, stderr, status := cleanKubeProxy(t)
		const want = "removed the nftables table ip kube-proxy\nremoved the nftables table ip6 kube-proxy\n"
		if status != 0 || stdout != want {
			t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
		}
		for table, left := range map[nftTable]bool{
			{unix.NFPROTO_IPV4, "kube-proxy"}: false, {unix.NFPROTO_IPV6, "kube-proxy"}: false,
			{unix.NFPROTO_IPV4, "mine"}: true, {unix.NFPROTO_INET, "kube-proxy"}: true,
		} {
			if exists := table.exists(); exists != left {
				t.Errorf("table %v: left %v, want %v", table, exists, left)
			}
		}
		if stdout, _, status := cleanKubeProxy(t); status != 0 || stdout != "kube-proxy has left nothing here\n" {
			t.Errorf("again: status %d, stdout %q", status, stdout)
		}
		return nil
	})
}

func TestTheDeviceOfIPVSModeIsFoundAndRemoved(t *testing.T) {
	inNamespace(t, func() error {
		// A bridge, because not every kernel has dummy devices; the name is what counts.
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "kube-ipvs0"}}); err != nil {
			return err
		}
		if state, err := kubeproxy.Find("/proc"); err != nil || !state.IPVS || !state.Found() {
			t.Errorf("found %+v, %v", state, err)
		}
		if stdout, stderr, status := cleanKubeProxy(t); status != 0 || !strings.Contains(stdout, "kube-ipvs0") {
			t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
		}
		if state, err := kubeproxy.Find("/proc"); err != nil || state.Found() {
			t.Errorf("left %+v, %v", state, err)
		}
		return nil
	})
}

// The chains can only be removed, and here made, by iptables itself.
func TestKubeProxysChainsAreFoundAndRemovedAndKubeletsStay(t *testing.T) {
	for _, command := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		t.Run(command, func(t *testing.T) {
			if _, err := exec.LookPath(command); err != nil {
				t.Skipf("%s is not installed", command)
			}
			inNamespace(t, func() error {
				if out, err := exec.Command(command, "-t", "nat", "-N", "KUBE-SERVICES").CombinedOutput(); err != nil {
					t.Skipf("this kernel does not do %s: %s", command, out)
				}
				rules := []string{
					"-N KUBE-SVC-ABC", "-A PREROUTING -j KUBE-SERVICES", "-A KUBE-SERVICES -p tcp --dport 80 -j KUBE-SVC-ABC",
					"-N KUBE-KUBELET-CANARY", "-N MINE", "-A PREROUTING -j MINE",
				}
				for _, rule := range rules {
					args := append([]string{"-t", "nat"}, strings.Fields(rule)...)
					if out, err := exec.Command(command, args...).CombinedOutput(); err != nil {
						return fmt.Errorf("%s %s: %w: %s", command, rule, err, out)
					}
				}
				if state, err := kubeproxy.Find("/proc"); err != nil || !state.Found() {
					t.Errorf("found %+v, %v", state, err)
				}
				stdout, stderr, status := cleanKubeProxy(t)
				if status != 0 || stdout != "removed 2 chains through "+command+"\n" {
					t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
				}
				out, err := exec.Command(command, "-t", "nat", "-S").Output()
				if err != nil {
					return err
				}
				left := string(out)
				if strings.Contains(left, "KUBE-S") || !strings.Contains(left, "KUBE-KUBELET-CANARY") ||
					!strings.Contains(left, "-A PREROUTING -j MINE") {
					t.Errorf("left:\n%s", left)
				}
				return nil
			})
		})
	}
}

// nftTable is an nftables table, made here by netlink alone.
type nftTable struct {
	family uint8
	name   string
}

// nfgenmsg begins each message of the netfilter netlink.
type nfgenmsg struct {
	family uint8
	resID  uint16
}

func (m nfgenmsg) Len() int { return 4 }
func (m nfgenmsg) Serialize() []byte {
	return binary.BigEndian.AppendUint16([]byte{m.family, 0}, m.resID)
}

// create makes the table with one chain.
func (t nftTable) create(chain string) error {
	const newTable, newChain = unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_NEWCHAIN
	message := func(kind int, flags int, m nfgenmsg, attributes ...*nl.RtAttr) []byte {
		request := nl.NewNetlinkRequest(kind, flags)
		request.AddData(m)
		for _, a := range attributes {
			request.AddData(a)
		}
		return request.Serialize()
	}
	text := func(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }
	const nftables = unix.NFNL_SUBSYS_NFTABLES << 8
	batch := slices.Concat(
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, nfgenmsg{resID: unix.NFNL_SUBSYS_NFTABLES}),
		message(nftables|newTable, unix.NLM_F_CREATE, nfgenmsg{family: t.family}, text(unix.NFTA_TABLE_NAME, t.name)),
		message(nftables|newChain, unix.NLM_F_CREATE|unix.NLM_F_ACK, nfgenmsg{family: t.family},
			text(unix.NFTA_CHAIN_TABLE, t.name), text(unix.NFTA_CHAIN_NAME, chain)),
		message(unix.NFNL_MSG_BATCH_END, 0, nfgenmsg{resID: unix.NFNL_SUBSYS_NFTABLES}),
	)
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := unix.Sendto(socket.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	messages, _, err := socket.Receive()
	if err != nil {
		return err
	}
	if errno := int32(binary.NativeEndian.Uint32(messages[0].Data)); errno != 0 {
		return fmt.Errorf("make table %v: %w", t, unix.Errno(-errno))
	}
	return nil
}

// exists asks for the table by name.
func (t nftTable) exists() bool {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, 0)
	request.AddData(nfgenmsg{family: t.family})
	request.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(t.name)))
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return err == nil
}

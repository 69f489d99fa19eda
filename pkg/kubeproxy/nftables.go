// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// table is an nftables table.
type table struct {
	family uint8
	name   string
}

// String writes it as nft does.
func (t table) String() string {
	switch t.family {
	case unix.NFPROTO_IPV4:
		return "ip " + t.name
	case unix.NFPROTO_IPV6:
		return "ip6 " + t.name
	case unix.NFPROTO_INET:
		return "inet " + t.name
	}
	return fmt.Sprintf("family %d %s", t.family, t.name)
}

// chain is an nftables chain. iptables-nft keeps its chains in tables that carry iptables' names.
type chain struct {
	table
	chain string
}

// nfgenmsg is struct nfgenmsg, which begins each message of the netfilter netlink.
type nfgenmsg struct {
	family uint8
	resID  uint16
}

func (m nfgenmsg) Len() int { return 4 }

func (m nfgenmsg) Serialize() []byte {
	return binary.BigEndian.AppendUint16([]byte{m.family, unix.NFNETLINK_V0}, m.resID)
}

func nftables(message int) int { return unix.NFNL_SUBSYS_NFTABLES<<8 | message }

// listChains lists all nftables chains of this network namespace.
func listChains() ([]chain, error) {
	var chains []chain
	err := dump(unix.NFT_MSG_GETCHAIN, func(family uint8, attrs map[uint16]string) {
		chains = append(chains, chain{table{family, attrs[unix.NFTA_CHAIN_TABLE]}, attrs[unix.NFTA_CHAIN_NAME]})
	})
	return chains, err
}

// listTables lists all nftables tables of this network namespace.
func listTables() ([]table, error) {
	var tables []table
	err := dump(unix.NFT_MSG_GETTABLE, func(family uint8, attrs map[uint16]string) {
		tables = append(tables, table{family, attrs[unix.NFTA_TABLE_NAME]})
	})
	return tables, err
}

// dump asks for all objects of one type. A kernel without nf_tables has none.
func dump(message int, found func(family uint8, attrs map[uint16]string)) error {
	const attempts = 5 // a dump that a change interrupted is repeated
	var lists [][]byte
	var err error
	for range attempts {
		request := nl.NewNetlinkRequest(nftables(message), unix.NLM_F_DUMP)
		request.AddData(nfgenmsg{family: unix.NFPROTO_UNSPEC})
		lists, err = request.Execute(unix.NETLINK_NETFILTER, 0)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("list nftables: no permission: run as root (CAP_NET_ADMIN)")
	case err != nil:
		return fmt.Errorf("list nftables: %w", err)
	}
	for _, b := range lists {
		if len(b) < 4 {
			continue
		}
		attrs, err := nl.ParseRouteAttr(b[4:])
		if err != nil {
			return fmt.Errorf("list nftables: read the kernel's answer: %w", err)
		}
		names := map[uint16]string{}
		for _, a := range attrs {
			names[a.Attr.Type] = unix.ByteSliceToString(a.Value)
		}
		found(b[0], names)
	}
	return nil
}

// deleteTable deletes a table with all that is in it, in a transaction of its own.
func deleteTable(t table) error {
	if err := transact(t); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", t, err)
	}
	return nil
}

func transact(t table) error {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return err
	}

	begin := nl.NewNetlinkRequest(unix.NFNL_MSG_BATCH_BEGIN, 0)
	begin.AddData(nfgenmsg{resID: unix.NFNL_SUBSYS_NFTABLES})
	remove := nl.NewNetlinkRequest(nftables(unix.NFT_MSG_DELTABLE), unix.NLM_F_ACK)
	remove.AddData(nfgenmsg{family: t.family})
	remove.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(t.name)))
	end := nl.NewNetlinkRequest(unix.NFNL_MSG_BATCH_END, 0)
	end.AddData(nfgenmsg{resID: unix.NFNL_SUBSYS_NFTABLES})

	var batch []byte
	for _, request := range []*nl.NetlinkRequest{begin, remove, end} {
		batch = append(batch, request.Serialize()...)
	}
	if err := unix.Sendto(socket.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return acknowledged(socket, remove.Seq)
}

// acknowledged waits for the kernel's answer to one message of a batch. An error may also name the batch itself.
func acknowledged(socket *nl.NetlinkSocket, seq uint32) error {
	for {
		messages, _, err := socket.Receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if errno := int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
				return unix.Errno(-errno)
			}
			if m.Header.Seq == seq {
				return nil
			}
		}
	}
}

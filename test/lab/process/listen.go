// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// listen starts an echo server. Errors of single connections are the clients' to see.
func (s *sockets) listen(in ListenRequest) (ListenResult, error) {
	begin := time.Now()
	if in.Network == UDP {
		server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(in.Address))
		if err != nil {
			return ListenResult{Outcome: outcome(begin, err)}, nil
		}
		go answerDatagrams(server, in.Name)
		return ListenResult{Socket: s.keep(server), Address: server.LocalAddr().(*net.UDPAddr).AddrPort()}, nil
	}
	if in.Network != TCP && in.Network != MPTCP {
		return ListenResult{}, fmt.Errorf("unknown network %q", in.Network)
	}
	var config net.ListenConfig
	config.SetMultipathTCP(in.Network == MPTCP)
	server, err := config.Listen(context.Background(), "tcp", in.Address.String())
	if err != nil {
		return ListenResult{Outcome: outcome(begin, err)}, nil
	}
	go acceptConnections(server, in.Name)
	return ListenResult{Socket: s.keep(server), Address: server.Addr().(*net.TCPAddr).AddrPort()}, nil
}

func acceptConnections(server net.Listener, name string) {
	for {
		connection, err := server.Accept()
		if err != nil {
			return // closed
		}
		go answerLines(connection, name)
	}
}

func answerLines(connection net.Conn, name string) {
	defer connection.Close()
	reply := Reply{
		Server: name,
		Peer:   unmapped(connection.RemoteAddr().(*net.TCPAddr).AddrPort()),
		Local:  unmapped(connection.LocalAddr().(*net.TCPAddr).AddrPort()),
	}
	encoder := json.NewEncoder(connection)
	lines := bufio.NewScanner(connection)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		reply.Text = lines.Text()
		if encoder.Encode(reply) != nil {
			return
		}
	}
}

func answerDatagrams(server *net.UDPConn, name string) {
	local := server.LocalAddr().(*net.UDPAddr).AddrPort()
	buffer := make([]byte, 65536)
	for {
		count, peer, err := server.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return // closed
		}
		text := strings.TrimSuffix(string(buffer[:count]), "\n")
		answer, err := json.Marshal(Reply{Server: name, Peer: unmapped(peer), Local: local, Text: text})
		if err == nil {
			_, _ = server.WriteToUDPAddrPort(answer, peer)
		}
	}
}

func unmapped(address netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
}

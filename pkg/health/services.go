// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Listeners says where the health ports of a family listen: on these addresses, or on all.
type Listeners func(model.Family) (addresses []netip.Addr, all bool)

// ServicesOptions are what NewServices needs.
type ServicesOptions struct {
	// Listeners is asked at each Set and Sync, so that the ports follow the node's addresses.
	Listeners Listeners
	// Healthy reports whether the agent itself keeps up; nil: it does. While it does not, every port answers 503.
	Healthy func() bool
	// Opened is told after each attempt whether a Service's health port is as it should be; nil also when it is closed
	// for good.
	Opened func(model.ServiceName, model.Family, error)
	// Listen is net.Listen where it is nil.
	Listen ListenFunc
}

// Services serves the healthCheckNodePort of Services: how many ready endpoints of the Service are on this node.
type Services struct {
	o  ServicesOptions
	mu sync.Mutex
	// ports has every port that should be open, whether it is or not.
	ports map[portKey]*port
}

type portKey struct {
	service model.ServiceName
	family  model.Family
}

// port is the health port of one Service in one family.
type port struct {
	key        portKey
	number     uint16
	localReady atomic.Int64
	healthy    func() bool
	// servers are the open listeners, by address.
	servers map[netip.Addr]*portServer
}

// NewServices returns a Services without open ports.
func NewServices(o ServicesOptions) *Services {
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	if o.Healthy == nil {
		o.Healthy = func() bool { return true }
	}
	if o.Opened == nil {
		o.Opened = func(model.ServiceName, model.Family, error) {}
	}
	return &Services{o: o, ports: map[portKey]*port{}}
}

// Set makes the ports of one Service those of checks, after a successful sync of it; none closes them.
func (s *Services) Set(service model.ServiceName, checks []model.HealthCheck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, family := range []model.Family{model.IPv4, model.IPv6} {
		key := portKey{service, family}
		i := slices.IndexFunc(checks, func(c model.HealthCheck) bool { return c.Family == family })
		current := s.ports[key]
		if current != nil && (i < 0 || current.number != checks[i].Port) {
			current.closeAll()
			delete(s.ports, key)
			s.o.Opened(service, family, nil)
			current = nil
		}
		if i < 0 {
			continue
		}
		if current == nil {
			current = &port{key: key, number: checks[i].Port, healthy: s.o.Healthy,
				servers: map[netip.Addr]*portServer{}}
			s.ports[key] = current
		}
		current.localReady.Store(int64(checks[i].LocalReady))
		s.open(current)
	}
}

// Sync opens what could not be opened before and follows the node's addresses. It is called after each sync.
func (s *Services) Sync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.ports {
		s.open(p)
	}
}

// Close closes all ports.
func (s *Services) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, p := range s.ports {
		p.closeAll()
		delete(s.ports, key)
	}
}

// open makes the listeners of a port those that there should be, and tells.
func (s *Services) open(p *port) {
	err := s.listen(p)
	if err != nil {
		err = fmt.Errorf("open healthCheckNodePort %d: %w: trying again at the next sync", p.number, err)
	}
	s.o.Opened(p.key.service, p.key.family, err)
}

// listen makes the listeners of a port those that there should be. When one cannot be opened, those that were opened
// with it are closed again: a load balancer that probes different addresses must not see two answers.
func (s *Services) listen(p *port) error {
	want := s.addresses(p.key.family)
	for address, server := range p.servers {
		if !slices.Contains(want, address) {
			server.close()
			delete(p.servers, address)
		}
	}
	var opened []netip.Addr
	for _, address := range want {
		if p.servers[address] != nil {
			continue
		}
		listener, err := s.o.Listen(network(p.key.family), netip.AddrPortFrom(address, p.number).String())
		if err != nil {
			for _, a := range opened {
				p.servers[a].close()
				delete(p.servers, a)
			}
			return err
		}
		opened = append(opened, address)
		p.servers[address] = p.serve(listener)
	}
	return nil
}

// addresses returns the addresses to listen on; the unspecified one for all.
func (s *Services) addresses(family model.Family) []netip.Addr {
	addresses, all := s.o.Listeners(family)
	switch {
	case !all:
		return addresses
	case family == model.IPv6:
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	return []netip.Addr{netip.IPv4Unspecified()}
}

// network keeps the sockets of the families apart, so that both can have the port on all addresses.
func network(family model.Family) string {
	if family == model.IPv6 {
		return "tcp6"
	}
	return "tcp4"
}

// portServer is one open listener and its server.
type portServer struct {
	http     *http.Server
	listener net.Listener
}

func (p *port) serve(listener net.Listener) *portServer {
	server := &portServer{http: newHTTPServer(p), listener: listener}
	// Serve ends when the server is closed.
	go func() { _ = server.http.Serve(listener) }()
	return server
}

// close closes the listener itself too: the server does not know it before Serve has begun, and who opens the port
// again must find it free.
func (s *portServer) close() {
	s.http.Close()
	s.listener.Close()
}

func (p *port) closeAll() {
	for address, server := range p.servers {
		server.close()
		delete(p.servers, address)
	}
}

// serviceStatus is the body of an answer, with kube-proxy's names.
type serviceStatus struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers any path and any method.
func (p *port) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	var body serviceStatus
	body.Service.Namespace, body.Service.Name = p.key.service.Namespace, p.key.service.Name
	body.LocalEndpoints, body.ServiceProxyHealthy = p.localReady.Load(), p.healthy()
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(body.LocalEndpoints, 10))
	code := http.StatusServiceUnavailable
	if body.LocalEndpoints > 0 && body.ServiceProxyHealthy {
		code = http.StatusOK
	}
	writeJSON(w, code, body)
}

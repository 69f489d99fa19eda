// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	webPort = 8080
	dnsPort = 5353
	dbPort  = 5432
)

// server is a pod that serves.
type server struct {
	*lab.Process
	node string
}

// world is the node, its neighbour, their pods, who is outside, and what is published about them.
type world struct {
	node     *lab.Node // shunt runs here
	other    *lab.Node // pods only
	outside  *lab.Process
	client   *lab.Process
	second   *lab.Process
	web      []*server
	dns      *server
	database *server
	// customer is a client outside the cluster; it reaches shopfront on this node, and reports on the other one.
	customer  *lab.Process
	shopfront *server
	reports   *server

	manifests string
	agent     *lab.Program

	webService, shop, dnsService, empty, headlessService *service
	shopfrontService, reportsService                     *service
}

func newWorld(l *lab.Lab) (*world, error) {
	w := &world{node: l.Node(lab.NodeOptions{}), other: l.Node(lab.NodeOptions{})}
	w.outside = l.Client(lab.ClientOptions{Name: "neighbour"}).Process()
	w.client = w.node.Pod(lab.PodOptions{Name: "shop-frontend"}).Process()
	w.second = w.node.Pod(lab.PodOptions{Name: "batch-job"}).Process()
	w.web = []*server{
		serve(w.node, "web-1", process.TCP, webPort),
		serve(w.node, "web-2", process.TCP, webPort),
		serve(w.other, "web-3", process.TCP, webPort),
	}
	w.dns = serve(w.node, "dns-1", process.UDP, dnsPort)
	w.database = serve(w.node, "db-0", process.TCP, dbPort)
	w.shopfront = serve(w.node, "shopfront-1", process.TCP, webPort)
	w.reports = serve(w.other, "reports-1", process.TCP, webPort)
	if err := w.addCustomer(l); err != nil {
		return nil, err
	}
	w.describeServices()
	w.describeOutside()

	w.manifests = w.node.File("manifests")
	if err := os.Mkdir(w.manifests, 0o755); err != nil {
		return nil, err
	}
	return w, nil
}

// addCustomer adds the client outside, whose router sends the Services' public addresses to the node.
func (w *world) addCustomer(l *lab.Lab) error {
	customer := l.Client(lab.ClientOptions{Name: "customer"})
	w.customer = customer.Process()
	return customer.AddRoute(netip.MustParsePrefix("203.0.113.0/24"), customer.Device, w.node.Address4)
}

func addresses(texts ...string) []netip.Addr {
	var parsed []netip.Addr
	for _, text := range texts {
		parsed = append(parsed, netip.MustParseAddr(text))
	}
	return parsed
}

func (w *world) describeServices() {
	w.webService = &service{
		name: "web", addresses: addresses("10.96.0.10", "fd00:10:96::a"), port: 80, targetPort: webPort,
		protocol: corev1.ProtocolTCP,
	}
	w.shop = &service{
		name: "shop", addresses: addresses("10.96.0.20"), port: 80, targetPort: webPort,
		protocol: corev1.ProtocolTCP, affinity: true,
	}
	w.empty = &service{
		name: "empty", addresses: addresses("10.96.0.30"), port: 80, targetPort: webPort, protocol: corev1.ProtocolTCP,
	}
	w.dnsService = &service{
		name: "dns", addresses: addresses("10.96.0.53"), port: 53, targetPort: dnsPort, protocol: corev1.ProtocolUDP,
	}
	w.headlessService = &service{name: "db", port: dbPort, targetPort: dbPort, protocol: corev1.ProtocolTCP}
}

// describeOutside are the Services that clients outside the cluster dial.
func (w *world) describeOutside() {
	w.shopfrontService = &service{
		name: "shopfront", addresses: addresses("10.96.0.40", "fd00:10:96::28"), port: 80, targetPort: webPort,
		protocol: corev1.ProtocolTCP, nodePort: 30080,
		external: netip.MustParseAddr("203.0.113.10"), balancer: netip.MustParseAddr("203.0.113.20"),
	}
	w.reportsService = &service{
		name: "reports", addresses: addresses("10.96.0.50", "fd00:10:96::32"), port: 80, targetPort: webPort,
		protocol: corev1.ProtocolTCP, nodePort: 30090,
	}
	w.dnsService.nodePort = 30053
}

// serve adds a pod with an echo server on both of its addresses.
func serve(node *lab.Node, name, network string, port uint16) *server {
	pod := node.Pod(lab.PodOptions{Name: name}).Process()
	pod.Listen(network, netip.AddrPortFrom(pod.Address4, port), name)
	pod.Listen(network, netip.AddrPortFrom(pod.Address6, port), name)
	return &server{Process: pod, node: node.Name}
}

func ready(servers []*server) []endpoint {
	var endpoints []endpoint
	for _, s := range servers {
		endpoints = append(endpoints, endpoint{pod: s})
	}
	return endpoints
}

func (w *world) publishAll() error {
	web := ready(w.web)
	for _, published := range []struct {
		service   *service
		endpoints []endpoint
	}{
		{w.webService, web}, {w.shop, web}, {w.empty, nil},
		{w.dnsService, ready([]*server{w.dns})}, {w.headlessService, ready([]*server{w.database})},
		{w.shopfrontService, ready([]*server{w.shopfront})}, {w.reportsService, ready([]*server{w.reports})},
	} {
		if err := w.publish(published.service, published.endpoints...); err != nil {
			return err
		}
	}
	return nil
}
